//! One round, seen from the parent: start the processes, show progress, kill one, wait for the rest.

use std::path::Path;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use sqlx::SqlitePool;

use crate::bank;
use crate::process::{self, Process};
use crate::worker::Order;

pub(crate) const WORKERS: u32 = 4;

/// The victim's n-th booking is its last.
const KILLED_AT: u32 = 8;

/// How often the parent looks at the file.
const LOOK: Duration = Duration::from_millis(50);

/// No round takes this long unless something hangs.
const LIMIT: Duration = Duration::from_mins(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    WithoutLock,
    WithLock,
}

impl Mode {
    pub(crate) fn file_name(self) -> &'static str {
        match self {
            Self::WithoutLock => "without.db",
            Self::WithLock => "with.db",
        }
    }

    pub(crate) fn from_file_name(name: &str) -> anyhow::Result<Self> {
        [Self::WithoutLock, Self::WithLock]
            .into_iter()
            .find(|mode| mode.file_name() == name)
            .with_context(|| format!("there is no round {name:?}"))
    }

    fn title(self) -> &'static str {
        match self {
            Self::WithoutLock => "1 without lock",
            Self::WithLock => "2 with #[distributed_lock]",
        }
    }
}

/// A worker process. Dropping it kills the process.
struct Worker {
    name: String,
    process: Process,
}

/// Books everything in `file`. Returns how long that took.
pub(crate) async fn play(
    file: &Path,
    pool: &SqlitePool,
    withdrawals: usize,
    mode: Mode,
) -> anyhow::Result<Duration> {
    let start = Instant::now();
    let start_worker = |number: u32, stall_at| {
        start_worker(Order {
            name: format!("worker {number}"),
            mode,
            file: file.to_owned(),
            stall_at,
        })
    };
    let bar = progress_bar(withdrawals, mode);
    let work = async {
        match mode {
            Mode::WithoutLock => {
                let workers = (1..=WORKERS).map(|number| start_worker(number, None));
                wait_for(workers.collect::<anyhow::Result<_>>()?).await
            }
            Mode::WithLock => {
                let mut victim = start_worker(WORKERS, Some(KILLED_AT))?;
                // On a busy machine the others might be done before it has begun.
                victim.entry(pool, 1).await?;
                let others = (1..WORKERS).map(|number| start_worker(number, None));
                let others = others.collect::<anyhow::Result<_>>()?;
                tokio::try_join!(wait_for(others), kill_inside(victim, pool, &bar)).map(|_| ())
            }
        }
    };
    tokio::select! {
        ended = work => ended?,
        failed = show_progress(&bar, pool) => failed?,
        () = tokio::time::sleep(LIMIT) => bail!("{} is not done after {LIMIT:?}", mode.title()),
    }
    bar.set_position(bank::done(pool).await?);
    bar.finish();
    if bar.is_hidden() {
        println!("{}: done in {:.1?}", mode.title(), start.elapsed());
    }
    Ok(start.elapsed())
}

/// Starts this program again as a worker.
fn start_worker(order: Order) -> anyhow::Result<Worker> {
    Ok(Worker {
        process: process::start(&order.to_arguments(), |_| ())?,
        name: order.name,
    })
}

/// Waits until all of them have found nothing more to do.
async fn wait_for(workers: Vec<Worker>) -> anyhow::Result<()> {
    for mut worker in workers {
        let status = worker
            .process
            .child
            .wait()
            .await
            .context("cannot wait for a worker")?;
        ensure!(status.success(), "{} ended with {status}", worker.name);
    }
    Ok(())
}

impl Worker {
    /// Waits for its `nth` entry, and says into which account.
    async fn entry(&mut self, pool: &SqlitePool, nth: u32) -> anyhow::Result<String> {
        loop {
            if let Some(customer) = bank::entry(pool, &self.name, nth).await? {
                return Ok(customer);
            }
            if let Some(status) = self.process.child.try_wait().context("cannot look at a worker")? {
                bail!("{} ended with {status} before it could be killed", self.name);
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Waits until the victim is inside of an account for its last time, and kills it there.
async fn kill_inside(mut victim: Worker, pool: &SqlitePool, bar: &ProgressBar) -> anyhow::Result<ExitStatus> {
    // It stalls there.
    let customer = victim.entry(pool, KILLED_AT).await?;
    // SIGKILL: nothing of the process runs any more, so nothing is released.
    victim
        .process
        .child
        .kill()
        .await
        .context("cannot kill a worker")?;
    bank::log(pool, "killed", (&victim.name, &customer), None).await?;
    let news = format!(
        "killed {} inside of account:{customer} on purpose: its lock is free after the ttl of 6 s",
        victim.name
    );
    if bar.is_hidden() {
        println!("{news}");
    } else {
        bar.println(news);
    }
    victim
        .process
        .child
        .wait()
        .await
        .context("cannot wait for a worker")
}

/// Moves the bar until it is dropped; returns only if that fails.
async fn show_progress(bar: &ProgressBar, pool: &SqlitePool) -> anyhow::Result<()> {
    loop {
        bar.set_position(bank::done(pool).await?);
        tokio::time::sleep(LOOK).await;
    }
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(withdrawals: usize, mode: Mode) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<27} {wide_bar} {pos:>3}/{len} {elapsed:>4}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(withdrawals as u64)
        .with_style(style)
        .with_message(mode.title())
}
