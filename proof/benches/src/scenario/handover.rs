//! From the moment that one process begins to release until the waiter in another one is inside.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::{Context, with_subject};
use crate::measure::Figures;
use crate::subject::{Kind, Use};
use crate::worker::{Work, Worker, clock};

pub(super) const SUBJECTS: &[Kind] = &[
    Kind::DblockPostgres,
    Kind::CommitNotify,
    Kind::Advisory,
    Kind::DblockMysql,
    Kind::DblockSqlite,
    Kind::Rslock,
];

/// Hand-overs before those that count. They open connections, and a server in Java compiles what it runs.
const WARM_UP: Duration = Duration::from_millis(500);

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let url = context.servers.url(kind.place())?;
    let times = context.pace.pick(15, 20);
    with_subject(context, kind, Use::contended(1), async |subject| {
        let mut worker = Worker::start(kind, &url, "handed", Work::Wait).await?;
        let mut holder = subject.client("handed");
        let (mut nanos, mut releases) = (Vec::new(), Vec::new());
        let begun_at = Instant::now();
        while nanos.len() < times {
            let warm = begun_at.elapsed() >= WARM_UP;
            holder.lock().await?;
            worker.tell("lock").await?;
            let line = worker.hear().await?;
            ensure!(line == "asking", "the waiter says {line:?}");
            // Nobody can see from outside that it waits. The length varies, so that waiters who poll are met
            // at any point between two looks.
            let held_ms = if warm { 30..90 } else { 2..6 };
            tokio::time::sleep(Duration::from_millis(fastrand::u64(held_ms))).await;
            let begun = clock();
            holder.unlock().await?;
            let release = clock() - begun;
            let inside: u64 = worker.hear().await?.parse()?;
            if warm {
                releases.push(release);
                nanos.push(inside.saturating_sub(begun));
            }
        }
        worker.end().await?;
        let mut figures = Figures::of(0.0, nanos);
        figures.per_s = None;
        // The release is one commit, whose answer comes about when the waiter is inside.
        let release = Figures::of(0.0, releases).p50_us.unwrap_or(0.0);
        Ok(figures.with("release_us", release))
    })
    .await
}
