//! A process of `processes`: eight tasks that update one account under one lock until standard input
//! closes. Arguments: the database's URL and the file for the log.

use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dblock::{LockError, LockManager, distributed_lock};
use dblock_tests::hot_account::{Account, Event, Log, TTL, monotonic_ns};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const TASKS: usize = 8;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, log] = arguments.as_slice() else {
        anyhow::bail!("arguments: URL LOG");
    };
    let stop = stop_when_stdin_closes();
    let account = Account::connect(url).await?;
    let worker = Arc::new(Worker {
        locks: account.lock_manager().await?,
        account,
        log: Log::open(log.as_ref())?,
    });
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (worker, stop) = (Arc::clone(&worker), stop.clone());
        // A task that is inside or waiting is dropped there: what it has must be released all the same.
        tasks.spawn(async move { stop.run_until_cancelled(Box::pin(worker.go_on_adding())).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended?.transpose()?;
    }
    worker.locks.shutdown(Duration::from_secs(5)).await;
    Ok(())
}

struct Worker {
    account: Account,
    locks: LockManager,
    log: Log,
}

impl Worker {
    /// Returns only what should not happen.
    async fn go_on_adding(&self) -> anyhow::Result<()> {
        loop {
            let Err(error) = self.add(Instant::now()).await else {
                continue;
            };
            // Lost and conflicts may happen on a slow machine, and cost nothing but the try. A wait that ran
            // out is a waiter that starved.
            let may_happen = error
                .downcast_ref::<LockError>()
                .is_some_and(|error| error.is_lost() || (error.is_store() && error.is_retryable()));
            if !may_happen {
                return Err(error);
            }
            self.log.write(&Event::Fault(format!("{error:#}")));
        }
    }

    #[distributed_lock(key = "hot", ttl = TTL, wait = "30s", manager = self.locks)]
    async fn add(&self, asked: Instant) -> anyhow::Result<()> {
        let lock = dblock::current().context("under the lock")?;
        let _visit = Visit::begin(&self.log, lock.fence_token(), asked);
        self.account.add(fastrand::i64(1..1000), &lock).await
    }
}

/// Writes down when a body begins and, however it ends, when it does.
struct Visit<'a> {
    log: &'a Log,
    fence_token: i64,
}

impl<'a> Visit<'a> {
    fn begin(log: &'a Log, fence_token: i64, asked: Instant) -> Self {
        log.write(&Event::Enter {
            at_ns: monotonic_ns(),
            fence_token,
            waited_us: i64::try_from(asked.elapsed().as_micros()).unwrap_or(i64::MAX),
        });
        Self { log, fence_token }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.log.write(&Event::Leave {
            at_ns: monotonic_ns(),
            fence_token: self.fence_token,
        });
    }
}

/// The parent closes it to end the work; the system does when the parent is gone.
fn stop_when_stdin_closes() -> CancellationToken {
    let stop = CancellationToken::new();
    let token = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        token.cancel();
    });
    stop
}
