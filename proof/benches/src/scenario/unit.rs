//! A unit of work under a lock: lock, update an order, unlock. All subjects have the same number of connections
//! in the application's pool.

use std::time::Duration;

use super::hot::longest_ms;
use super::{Context, with_subject, with_subject_at};
use crate::delay::Delay;
use crate::load::{Keys, Load};
use crate::measure::Figures;
use crate::subject::{Kind, Use};

pub(super) const POSTGRES: &[Kind] = &[
    Kind::UnitTransaction,
    Kind::UnitLock,
    Kind::UnitForUpdate,
    Kind::UnitXactLock,
];
pub(super) const MYSQL: &[Kind] = &[
    Kind::UnitTransactionMysql,
    Kind::UnitLockMysql,
    Kind::UnitForUpdateMysql,
];

/// Tasks with keys of their own.
pub(super) async fn apart(context: &mut Context<'_>, kind: Kind, tasks: usize) -> anyhow::Result<Figures> {
    let load = load(context, tasks, Keys::Own("unit"));
    with_subject(context, kind, Use::apart(tasks), async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await
}

/// Tasks that want one key.
pub(super) async fn hot(context: &mut Context<'_>, kind: Kind, tasks: usize) -> anyhow::Result<Figures> {
    let load = load(context, tasks, Keys::One("unit"));
    with_subject(context, kind, Use::contended(tasks), async |subject| {
        let seen = load.run(subject).await?;
        Ok(Figures::of_pairs(&seen).with("longest_wait_ms", longest_ms(&seen)))
    })
    .await
}

/// One task whose keys were never locked before.
pub(super) async fn new_keys(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let load = load(context, 1, Keys::Own("unit"));
    let plan = Use {
        new_keys: true,
        ..Use::apart(1)
    };
    with_subject(context, kind, plan, async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await
}

/// One task, with a network between it and its server.
pub(super) async fn far_away(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let load = load(context, 1, Keys::Own("unit"));
    let delay = Delay::start(context.servers.postgres_address()?)?;
    let url = context.servers.postgres_through(delay.address())?;
    with_subject_at(context, kind, &url, Use::apart(1), async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await
}

fn load<'k>(context: &Context<'_>, tasks: usize, keys: Keys<'k>) -> Load<'k> {
    Load {
        tasks,
        keys,
        warm: Duration::from_millis(200),
        time: Duration::from_millis(context.pace.pick(500, 1000)),
    }
}
