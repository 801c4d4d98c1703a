//! Tasks that lock and unlock for a while, and what they saw.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::subject::{Client, Subject, TIMEOUT};

/// The work of the tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) tasks: usize,
    pub(crate) keys: Keys<'a>,
    /// Runs before anything counts.
    pub(crate) warm: Duration,
    pub(crate) time: Duration,
}

/// Which keys the tasks lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Keys<'a> {
    /// Each task its own, with this prefix.
    Own(&'a str),
    /// All of them this one.
    One(&'a str),
}

/// The events in the measured time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub(crate) time: Duration,
    /// Lock and unlock together, ns.
    pub(crate) pairs: Vec<u64>,
    /// From asking for the lock to being inside, ns.
    pub(crate) waits: Vec<u64>,
    /// How often each task was inside.
    pub(crate) entries: Vec<u64>,
    /// The longest wait of one that began in the measured time, ns.
    pub(crate) longest: u64,
}

impl Seen {
    pub(crate) fn per_second(&self) -> f64 {
        self.entries.iter().sum::<u64>() as f64 / self.time.as_secs_f64()
    }
}

impl Load<'_> {
    /// Runs the tasks to the end.
    ///
    /// # Errors
    /// When one of them fails, or cannot enter long after the time is over.
    pub(crate) async fn run(self, subject: &dyn Subject) -> anyhow::Result<Seen> {
        let most = self.warm + self.time + 2 * TIMEOUT;
        let seen = tokio::time::timeout(most, self.run_tasks(subject)).await;
        seen.with_context(|| format!("not done after {most:?}"))?
    }

    async fn run_tasks(self, subject: &dyn Subject) -> anyhow::Result<Seen> {
        let barrier = Arc::new(Barrier::new(self.tasks));
        let mut tasks = JoinSet::new();
        for number in 0..self.tasks {
            let client = match self.keys {
                Keys::Own(prefix) => subject.client(&format!("{prefix}:{number}")),
                Keys::One(key) => subject.client(key),
            };
            tasks.spawn(one_task(client, Arc::clone(&barrier), self.warm, self.time));
        }
        let mut seen = Seen {
            time: self.time,
            ..Seen::default()
        };
        while let Some(task) = tasks.join_next().await {
            let one = task.context("a task panicked")??;
            seen.entries.push(one.waits.len() as u64);
            seen.pairs.extend(one.pairs);
            seen.waits.extend(one.waits);
            seen.longest = seen.longest.max(one.longest);
        }
        Ok(seen)
    }
}

async fn one_task(
    mut client: Box<dyn Client>,
    barrier: Arc<Barrier>,
    warm: Duration,
    time: Duration,
) -> anyhow::Result<Seen> {
    barrier.wait().await;
    let start = Instant::now() + warm;
    let end = start + time;
    let mut seen = Seen::default();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(seen);
        }
        client.lock().await?;
        let inside = Instant::now();
        client.unlock().await?;
        let wait = nanos(inside - asked);
        if inside >= start {
            seen.longest = seen.longest.max(wait);
        }
        if inside >= start && inside < end {
            seen.waits.push(wait);
            seen.pairs.push(nanos(asked.elapsed()));
        }
    }
}

pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
