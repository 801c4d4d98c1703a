//! 64 tasks of one process want one key: alone, shared, or eight at once.

use std::time::Duration;

use super::{Context, with_subject};
use crate::load::{Keys, Load, Seen};
use crate::measure::Figures;
use crate::subject::{Kind, Use};

pub(super) const SUBJECTS: &[Kind] = &[
    Kind::DblockPostgres,
    Kind::Advisory,
    Kind::Dlpg,
    Kind::DblockRedis,
    Kind::Rslock,
    Kind::AsyncRedisLock,
];

pub(super) const SHARED: &[Kind] = &[Kind::DblockShared, Kind::AdvisoryShared];

pub(super) const LIMITED: &[Kind] = &[Kind::DblockLimit8];

const TASKS: usize = 64;

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let load = Load {
        tasks: TASKS,
        keys: Keys::One("hot"),
        warm: Duration::from_millis(500),
        time: Duration::from_millis(context.pace.pick(1000, 2000)),
    };
    with_subject(context, kind, Use::contended(TASKS), async |subject| {
        let seen = load.run(subject).await?;
        Ok(Figures::of_waits(&seen).with("most_over_fewest", most_over_fewest(&seen)))
    })
    .await
}

/// Entries of the task that was inside most often over those of the one that was least; a task that
/// starved counts as one entry.
pub(super) fn most_over_fewest(seen: &Seen) -> f64 {
    let most = seen.entries.iter().max().copied().unwrap_or(0);
    let fewest = seen.entries.iter().min().copied().unwrap_or(0);
    most as f64 / fewest.max(1) as f64
}

/// The longest wait of all.
pub(super) fn longest_ms(seen: &Seen) -> f64 {
    seen.longest as f64 / 1e6
}
