//! One task locks and unlocks one key that nobody else wants.

use std::time::Duration;

use super::Context;
use super::keys;
use crate::measure::Figures;
use crate::subject::Kind;

pub(super) const POSTGRES: &[Kind] = &[
    Kind::DblockPostgres,
    Kind::DblockRecorded,
    Kind::DblockTwo,
    Kind::FloorPostgres,
    Kind::BarePostgres,
    Kind::UpsertPostgres,
    Kind::Advisory,
    Kind::Dlpg,
    Kind::DlpgTry,
    Kind::DblockRedis,
    Kind::Rslock,
    Kind::AsyncRedisLock,
];
pub(super) const MYSQL: &[Kind] = &[
    Kind::DblockMysql,
    Kind::FloorMysql,
    Kind::BareMysql,
    Kind::UpsertMysql,
    Kind::Dlmy,
];
pub(super) const SQLITE: &[Kind] = &[
    Kind::DblockSqlite,
    Kind::FloorSqlite,
    Kind::BareSqlite,
    Kind::UpsertSqlite,
];

/// Short, so that the subjects take turns often: a disk's speed drifts.
pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let time = Duration::from_millis(context.pace.pick(250, 500));
    keys::run(context, kind, 1, Duration::from_millis(100), time).await
}
