//! `cargo run --example api_limit`: a payment provider allows at most eight calls at once, in all processes together.
//!
//! `memory:` is the store of one process. In a service it is one that the processes share, and that has limited
//! locks: `Capabilities::shares`.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use anyhow::ensure;
use dblock::{LockError, LockManager, distributed_lock};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// The provider, which counts its calls.
#[derive(Default)]
struct Provider {
    now: AtomicU32,
    most: AtomicU32,
}

impl Provider {
    async fn charge(&self) {
        self.most.fetch_max(self.now.fetch_add(1, SeqCst) + 1, SeqCst);
        sleep(Duration::from_millis(100)).await;
        self.now.fetch_sub(1, SeqCst);
    }
}

/// The ninth call waits until one of the eight has ended, and fails after ten seconds.
#[distributed_lock(key = "payment-provider", limit = 8, ttl = "10s", wait = "10s")]
async fn charge(provider: &Provider) -> Result<(), LockError> {
    provider.charge().await;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let locks = LockManager::connect("memory:").await?;
    dblock::install(locks.clone())?;
    let provider: &'static Provider = Box::leak(Box::default());
    let began = Instant::now();
    let mut calls: JoinSet<_> = (0..40).map(|_| charge(provider)).collect();
    while let Some(call) = calls.join_next().await {
        call??;
    }
    let most = provider.most.load(SeqCst);
    println!(
        "40 calls of 100 ms took {:?}; at most {most} ran at once",
        began.elapsed()
    );
    ensure!(most == 8, "the limit is 8");
    locks.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
