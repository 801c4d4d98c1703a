//! The work of each of the service's processes: it pays withdrawals until none is open.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::books::Place;
use crate::client::Client;
use crate::process::end_with_the_parent;
use crate::service::{PayError, Service, Way};

/// The hidden first argument that makes this program a worker.
pub(crate) const WORKER: &str = "--worker";

/// A worker prints this line when it is where it is to be killed.
pub(crate) const STALLED: &str = "stalled";

/// The withdrawal at which a worker is killed.
const LAST: u32 = 4;

/// A point at which a process can die in the middle of a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    BeforeTheProvider,
    AfterTheProvider,
    BeforeTheCommit,
    AfterTheCommit,
}

impl Step {
    pub(crate) const ALL: [Self; 4] = [
        Self::BeforeTheProvider,
        Self::AfterTheProvider,
        Self::BeforeTheCommit,
        Self::AfterTheCommit,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BeforeTheProvider => "before it asks the provider",
            Self::AfterTheProvider => "after the provider's answer",
            Self::BeforeTheCommit => "before the commit",
            Self::AfterTheCommit => "after the commit",
        }
    }
}

/// Stops this process where it is to be killed.
#[derive(Debug)]
pub(crate) struct Steps {
    killed_at: Option<Step>,
    withdrawals: AtomicU32,
}

impl Steps {
    pub(crate) async fn reached(&self, step: Step) {
        if self.killed_at == Some(step) && self.withdrawals.load(Ordering::Relaxed) >= LAST {
            println!("{STALLED}");
            std::future::pending::<()>().await;
        }
    }
}

/// The worker's arguments, from the parent.
pub(crate) fn order(way: Way, folder: &str, place: &Place, killed_at: Option<Step>) -> Vec<String> {
    let step = killed_at.map_or("never", Step::name);
    [WORKER, &way.to_string(), folder, &place.to_argument(), step]
        .map(str::to_owned)
        .to_vec()
}

/// The whole life of a worker process.
pub(crate) async fn run(order: &[&str]) -> anyhow::Result<ExitCode> {
    end_with_the_parent();
    let [way, folder, place, step] = *order else {
        bail!("{WORKER} takes 4 arguments and is for this program's own use");
    };
    let way = Way::parse(way)?;
    let books = Place::from_argument(place).open().await?;
    let service = Service {
        locks: books.lock_manager().await?,
        books,
        provider: Client::new(folder.as_ref()),
        steps: Steps {
            killed_at: Step::ALL.into_iter().find(|known| known.name() == step),
            withdrawals: AtomicU32::new(0),
        },
    };
    while let Some(withdrawal) = service.books.next_open().await.context("cannot read the books")? {
        service.steps.withdrawals.fetch_add(1, Ordering::Relaxed);
        match service.pay(way, &withdrawal).await {
            // It stays open, so that one of the processes tries it again.
            Ok(()) | Err(PayError::NotPaid(_) | PayError::NoAnswer(_)) => {}
            Err(PayError::Lock(error)) if error.is_retryable() || error.is_lost() => {}
            Err(error) => {
                let error = Err(error);
                return error.with_context(|| format!("cannot pay withdrawal {}", withdrawal.id));
            }
        }
    }
    service.locks.shutdown(Duration::from_secs(1)).await;
    Ok(ExitCode::SUCCESS)
}
