//! The cost of the attribute and the engine by themselves: an annotated call on the memory store.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use dblock::{LockError, LockManager, distributed_lock};

use super::Context;
use crate::load::nanos;
use crate::measure::Figures;
use crate::subject::{Kind, TIMEOUT};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockMemory, Kind::DblockMemoryRecorded];

struct Service {
    locks: LockManager,
}

impl Service {
    #[distributed_lock(key = "order:{id}", manager = self.locks)]
    async fn annotated(&self, id: u64) -> Result<u64, LockError> {
        Ok(id + 1)
    }
}

/// On the runtime of all scenarios, whose two workers pass caller and engine to and fro, and on a runtime
/// with one thread, which shows the work alone.
pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    kind.switch_recorder()?;
    let count = context.pace.pick(20_000, 100_000);
    // In a task, as a service's calls are: the main thread is no worker of the runtime.
    let figures = tokio::spawn(calls(count)).await??;
    let alone = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(calls(count))
    });
    let alone = tokio::task::spawn_blocking(|| alone.join()).await?;
    let alone = alone.ok().context("the thread panicked")??;
    let ns = |figures: &Figures| figures.p50_us.unwrap_or(0.0) * 1000.0;
    let (two, one) = (ns(&figures), ns(&alone));
    Ok(figures.with("ns", two).with("ns_on_one_thread", one))
}

async fn calls(count: u64) -> anyhow::Result<Figures> {
    let service = Service {
        locks: LockManager::connect("memory:").await?,
    };
    let mut times = Vec::new();
    for warm in [true, false] {
        for call in 0..count {
            let id = call % 16;
            let start = Instant::now();
            let next = service.annotated(id).await?;
            let time = nanos(start.elapsed());
            ensure!(next == id + 1, "a call returned {next}");
            if !warm {
                times.push(time);
            }
        }
    }
    service.locks.shutdown(TIMEOUT).await;
    let total: u64 = times.iter().sum();
    Ok(Figures::of(count as f64 / (total as f64 / 1e9), times))
}
