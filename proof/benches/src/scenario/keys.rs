//! Many tasks of one process, each with a key of its own.

use std::time::Duration;

use super::{COUNTED, Context, pool, statements_per_pair, with_subject};
use crate::load::{Keys, Load};
use crate::measure::Figures;
use crate::subject::{Kind, Use};

pub(super) const SUBJECTS: &[Kind] = &[
    Kind::DblockPostgres,
    Kind::Dlpg,
    Kind::DlpgTry,
    Kind::DblockRedis,
    Kind::Rslock,
    Kind::AsyncRedisLock,
    Kind::FloorPostgres,
];
pub(super) const MYSQL: &[Kind] = &[Kind::DblockMysql, Kind::Dlmy, Kind::FloorMysql];

pub(super) async fn round(context: &mut Context<'_>, kind: Kind, tasks: usize) -> anyhow::Result<Figures> {
    let time = Duration::from_millis(context.pace.pick(600, 1500));
    run(context, kind, tasks, Duration::from_millis(300), time).await
}

pub(super) async fn run(
    context: &mut Context<'_>,
    kind: Kind,
    tasks: usize,
    warm: Duration,
    time: Duration,
) -> anyhow::Result<Figures> {
    let load = Load {
        tasks,
        keys: Keys::Own("own"),
        warm,
        time,
    };
    let plan = Use {
        pool: pool::best(context, kind, load).await?,
        ..Use::apart(tasks)
    };
    let mut figures = with_subject(context, kind, plan, async |subject| {
        Ok(Figures::of_pairs(&load.run(subject).await?))
    })
    .await?;
    if kind.has_pool() {
        figures = figures.with("pool", plan.pool.min(tasks) as f64);
    }
    // Once is enough: the number of statements does not depend on the machine's noise.
    if context.round == 0 {
        let counted = Load {
            warm: Duration::ZERO,
            time: COUNTED,
            ..load
        };
        let per_pair = statements_per_pair(context, kind, plan, async |subject| {
            Ok(counted.run(subject).await?.entries.iter().sum())
        })
        .await?;
        if let Some(per_pair) = per_pair {
            figures = figures.with("statements_per_pair", per_pair);
        }
    }
    Ok(figures)
}
