//! A unit of work under a lock: lock, update an order, unlock. All subjects have the same number of connections
//! in the application's pool.

use std::time::Duration;

use anyhow::Context as _;
use futures_util::future::try_join;

use super::hot::longest_ms;
use super::{Context, with_subject, with_subject_at};
use crate::delay::Delay;
use crate::load::{Keys, Load};
use crate::measure::Figures;
use crate::servers::Place;
use crate::subject::{Kind, Use};
use crate::worker::{Work, Worker, clock};

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

/// Their bodies take some time.
pub(super) const LONG: &[Kind] = &[
    Kind::UnitTransaction1ms,
    Kind::UnitTransaction100ms,
    Kind::UnitTransaction1msMysql,
    Kind::UnitTransaction100msMysql,
];
pub(super) const KILLED: &[Kind] = &[Kind::UnitTransactionMinute, Kind::UnitTransactionMinuteMysql];

/// A process is killed in its transaction: from then until the waiter in this one has done its unit.
pub(super) async fn killed(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let url = context.servers.url(kind.place())?;
    let waiter = match kind.place() {
        Place::MySql => Kind::UnitTransactionMysql,
        _ => Kind::UnitTransaction,
    };
    with_subject_at(context, waiter, &url, Use::apart(1), async |subject| {
        let mut waits = subject.client("killed");
        waits.lock().await?;
        let mut nanos = Vec::new();
        for _ in 0..5 {
            let mut worker = Worker::start(kind, &url, "killed", Work::Wait).await?;
            worker.tell("lock").await?;
            worker.hear().await?;
            // Nobody can see from outside that it is in its transaction.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let kills = async {
                tokio::time::sleep(Duration::from_millis(500)).await;
                worker.kill().await?;
                Ok(clock())
            };
            let enters = async {
                waits.lock().await?;
                Ok::<_, anyhow::Error>(clock())
            };
            let (killed, entered) = try_join(kills, enters).await?;
            nanos.push(entered.checked_sub(killed).context("the key was not held")?);
        }
        let freed = nanos.iter().max().map_or(0.0, |nanos| *nanos as f64 / 1e9);
        let mut figures = Figures::of(0.0, nanos);
        figures.per_s = None;
        Ok(figures.with("freed_s", freed))
    })
    .await
}

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
