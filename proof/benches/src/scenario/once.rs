//! Runs that are remembered: the first call of a key, and the calls after it.

use std::time::Duration;

use super::{Context, with_subject};
use crate::load::{Keys, Load};
use crate::measure::Figures;
use crate::subject::{Kind, Use};

pub(super) const RUNS: &[Kind] = &[Kind::OnceRun, Kind::OnceLock];
pub(super) const REPLAYS: &[Kind] = &[Kind::OnceReplay, Kind::OnceRead];

pub(super) async fn round(context: &mut Context<'_>, kind: Kind, tasks: usize) -> anyhow::Result<Figures> {
    let load = Load {
        tasks,
        keys: Keys::Own("once"),
        warm: Duration::from_millis(200),
        time: Duration::from_millis(context.pace.pick(500, 1000)),
    };
    with_subject(context, kind, Use::apart(tasks), async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await
}
