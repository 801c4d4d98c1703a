//! A unit of work on a row: lock an order, update the order, unlock.

use std::time::Duration;

use super::{Context, with_subject};
use crate::load::{Keys, Load};
use crate::measure::Figures;
use crate::subject::{Kind, Use};

pub(super) const SUBJECTS: &[Kind] = &[
    Kind::UnitTransaction,
    Kind::UnitLock,
    Kind::UnitForUpdate,
    Kind::UnitXactLock,
];

/// All with the same number of connections in the application's pool.
pub(super) async fn round(
    context: &mut Context<'_>,
    kind: Kind,
    load: (usize, Keys<'_>),
) -> anyhow::Result<Figures> {
    let (tasks, keys) = load;
    let load = Load {
        tasks,
        keys,
        warm: Duration::from_millis(200),
        time: Duration::from_millis(context.pace.pick(500, 1000)),
    };
    with_subject(context, kind, Use::apart(tasks), async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await
}
