//! One process cannot listen, three others can, and all of them want one key without a pause.

use futures_util::future::try_join_all;

use super::Context;
use crate::measure::Figures;
use crate::subject::Kind;
use crate::worker::{Report, Work, Worker};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockDeaf];

const LISTENING: usize = 3;
const TASKS: usize = 2;
/// The others go on, so that the last wait of the process that polls is as hard as the first.
const LONGER_MS: u64 = 4000;

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let url = context.servers.url(kind.place())?;
    let time_ms = context.pace.pick(8000, 20_000);
    let load = |tasks, time_ms| Work::Load {
        tasks,
        warm_ms: 500,
        time_ms,
    };
    let others = (0..LISTENING).map(|_| {
        let work = load(TASKS, time_ms + LONGER_MS);
        Worker::start(Kind::DblockPostgres, &url, "polled", work)
    });
    let mut others = try_join_all(others).await?;
    let mut polling = Worker::start(kind, &url, "polled", load(1, time_ms)).await?;
    try_join_all(others.iter_mut().map(|worker| worker.tell("go"))).await?;
    polling.tell("go").await?;
    let report: Report = serde_json::from_str(&polling.hear().await?)?;
    let mut listening = 0;
    for other in &mut others {
        let report: Report = serde_json::from_str(&other.hear().await?)?;
        listening += report.entries.iter().sum::<u64>();
    }
    polling.end().await?;
    try_join_all(others.into_iter().map(Worker::end)).await?;

    let per_s = |entries: u64, ms: u64| entries as f64 * 1000.0 / ms as f64;
    let entries = per_s(report.entries.iter().sum(), time_ms);
    Ok(Figures::of(entries, report.waits)
        .with("longest_wait_s", report.longest as f64 / 1e9)
        .with("listening_per_s", per_s(listening, time_ms + LONGER_MS)))
}
