//! One round, seen from the parent: start the processes, kill them where they stall, keep the provider
//! running, show progress.

use std::cell::Cell;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::future::try_join_all;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::books::{Books, Place};
use crate::process;
use crate::provider::PROVIDER;
use crate::service::{ASKED, Way};
use crate::worker::{STALLED, Step, order};

pub(crate) const WORKERS: usize = 4;

/// How many of the processes are killed: two at each step.
const VICTIMS: usize = 2 * Step::ALL.len();

/// How often the parent looks at the books.
const LOOK: Duration = Duration::from_millis(100);

/// How often progress is printed where there is no terminal.
const NEWS: Duration = Duration::from_secs(2);

/// No round takes this long unless something hangs.
const LIMIT: Duration = Duration::from_mins(5);

/// The events of a round.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Where processes were killed.
    pub(crate) kills: Vec<Step>,
    /// How often the provider died.
    pub(crate) deaths: u32,
    /// How many runs in doubt were decided by asking the provider.
    pub(crate) asked: u32,
    pub(crate) time: Duration,
}

struct Round<'r> {
    way: Way,
    folder: &'r Path,
    place: &'r Place,
    started: Cell<usize>,
    kills: Cell<Vec<Step>>,
    deaths: Cell<u32>,
    asked: Cell<u32>,
    bar: ProgressBar,
}

/// Pays everything that is in the books. `folder` is for the provider's own.
pub(crate) async fn play(
    way: Way,
    folder: &Path,
    place: &Place,
    books: &Books,
    withdrawals: usize,
) -> anyhow::Result<Events> {
    let round = Round {
        way,
        folder,
        place,
        started: Cell::new(0),
        kills: Cell::default(),
        deaths: Cell::default(),
        asked: Cell::default(),
        bar: progress_bar(withdrawals, way),
    };
    let start = Instant::now();
    tokio::select! {
        ended = try_join_all((0..WORKERS).map(|_| round.keep_working())) => drop(ended?),
        failed = round.keep_the_provider() => failed?,
        failed = round.show_progress(books, withdrawals) => failed?,
        () = tokio::time::sleep(LIMIT) => bail!("{} is not done after {LIMIT:?}", way.title()),
    }
    round.bar.set_position(books.booked().await?);
    round.bar.finish();
    let time = start.elapsed();
    if round.bar.is_hidden() {
        println!("{}: done in {time:.1?}", way.title());
    }
    Ok(Events {
        kills: round.kills.take(),
        deaths: round.deaths.get(),
        asked: round.asked.get(),
        time,
    })
}

impl Round<'_> {
    /// One worker after the other, until one ends by itself.
    async fn keep_working(&self) -> anyhow::Result<()> {
        loop {
            let number = self.started.replace(self.started.get() + 1);
            let killed_at = (number < VICTIMS).then(|| Step::ALL[number % Step::ALL.len()]);
            let folder = self.folder.display().to_string();
            let arguments = order(self.way, &folder, self.place, killed_at);
            let mut worker = process::start(&arguments, |command| {
                command.stdout(Stdio::piped()).envs(self.place.variable());
            })?;
            let output = worker.child.stdout.take().context("its output is piped")?;
            let mut lines = BufReader::new(output).lines();
            let mut stalled = false;
            while let Some(line) = lines.next_line().await.context("cannot listen to a worker")? {
                match line.as_str() {
                    ASKED => self.asked.set(self.asked.get() + 1),
                    STALLED => {
                        stalled = true;
                        break;
                    }
                    other => bail!("a worker said {other:?}"),
                }
            }
            match killed_at {
                Some(step) if stalled => {
                    // SIGKILL: nothing of the process runs any more, so nothing is released.
                    worker.child.kill().await.context("cannot kill a worker")?;
                    let mut kills = self.kills.take();
                    kills.push(step);
                    self.kills.set(kills);
                }
                _ => {
                    let status = worker.child.wait().await.context("cannot wait for a worker")?;
                    ensure!(status.success(), "a worker ended with {status}");
                    return Ok(());
                }
            }
        }
    }

    /// Starts the provider again whenever it dies. Returns only if that fails.
    async fn keep_the_provider(&self) -> anyhow::Result<()> {
        loop {
            let arguments = [
                PROVIDER,
                &self.folder.display().to_string(),
                &self.way.to_string(),
            ];
            let mut provider = process::start(&arguments.map(str::to_owned), |_| ())?;
            let status = provider
                .child
                .wait()
                .await
                .context("cannot wait for the provider")?;
            ensure!(status.code().is_none(), "the provider ended with {status}");
            self.deaths.set(self.deaths.get() + 1);
        }
    }

    /// Moves the bar until it is dropped; returns only if that fails.
    async fn show_progress(&self, books: &Books, withdrawals: usize) -> anyhow::Result<()> {
        let mut told = Instant::now();
        loop {
            let booked = books.booked().await?;
            self.bar.set_position(booked);
            if self.bar.is_hidden() && told.elapsed() >= NEWS {
                told = Instant::now();
                println!(
                    "{}: {booked} of {withdrawals} are paid and booked",
                    self.way.title()
                );
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A bar on a terminal, nothing elsewhere.
fn progress_bar(withdrawals: usize, way: Way) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:<22} {wide_bar} {pos:>3}/{len} {elapsed:>4}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(withdrawals as u64)
        .with_style(style)
        .with_message(way.title())
}
