//! Several processes want one key.

use std::time::Duration;

use futures_util::future::try_join_all;

use super::Context;
use super::hot::{longest_ms, most_over_fewest};
use crate::load::Seen;
use crate::measure::Figures;
use crate::subject::Kind;
use crate::worker::{Report, Work, Worker};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockPostgres, Kind::Advisory, Kind::DblockMysql];

/// So many processes with so many tasks each.
pub(super) async fn round(
    context: &mut Context<'_>,
    kind: Kind,
    (processes, tasks): (usize, usize),
    time_ms: u64,
) -> anyhow::Result<Figures> {
    let url = context.servers.url(kind.place())?;
    let work = Work::Load {
        tasks,
        warm_ms: 500,
        time_ms,
    };
    let start = (0..processes).map(|_| Worker::start(kind, &url, "hot4", work.clone()));
    let mut workers = try_join_all(start).await?;
    try_join_all(workers.iter_mut().map(|worker| worker.tell("go"))).await?;
    // In the middle of it.
    tokio::time::sleep(Duration::from_millis(time_ms / 2)).await;
    let connections = context.servers.connections(kind.place()).await?;
    let lines = try_join_all(workers.iter_mut().map(Worker::hear)).await?;
    try_join_all(workers.into_iter().map(Worker::end)).await?;

    let time = Duration::from_millis(time_ms);
    let mut all = Seen {
        time,
        ..Seen::default()
    };
    // Of each process, to compare them like tasks.
    let mut processes = Seen {
        time,
        ..Seen::default()
    };
    for line in lines {
        let report: Report = serde_json::from_str(&line)?;
        processes.entries.push(report.entries.iter().sum());
        all.longest = all.longest.max(report.longest);
        all.waits.extend(report.waits);
        all.entries.extend(report.entries);
    }
    let mut figures = Figures::of_waits(&all)
        .with("processes_most_over_fewest", most_over_fewest(&processes))
        .with("tasks_most_over_fewest", most_over_fewest(&all))
        .with("longest_wait_ms", longest_ms(&all));
    figures.connections = Some(connections as f64);
    Ok(figures)
}
