//! `alone` on a table with a million idle rows, and on an empty one.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::{Context, keys};
use crate::measure::Figures;
use crate::servers::Place;
use crate::subject::{Kind, MILLION_TABLE, TIMEOUT, table_of};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockEmpty, Kind::DblockMillion];

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    if context.round == 0 && kind == Kind::DblockMillion {
        fill(&context.servers.url(Place::Postgres)?).await?;
    }
    let time = Duration::from_millis(context.pace.pick(250, 500));
    keys::run(context, kind, 1, Duration::from_millis(100), time).await
}

/// Rows as releases leave them, too young to be purged.
async fn fill(url: &str) -> anyhow::Result<()> {
    eprintln!("  filling a table with a million rows");
    table_of(url, MILLION_TABLE).await?.shutdown(TIMEOUT).await;
    let mut connection = PgConnection::connect(url).await?;
    let insert = format!(
        "INSERT INTO {MILLION_TABLE} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
             fence_ceiling, acquired_at, holder)
         SELECT 'order:' || number, gen_random_uuid(), 0, now, gen_random_uuid(), now, now, now, 'host/1'
         FROM generate_series(1, 1000000) number,
             (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now) clock"
    );
    sqlx::raw_sql(AssertSqlSafe(insert))
        .execute(&mut connection)
        .await?;
    // The server would do this sooner or later by itself, in the middle of a measurement.
    sqlx::raw_sql(AssertSqlSafe(format!("VACUUM ANALYZE {MILLION_TABLE}")))
        .execute(&mut connection)
        .await?;
    sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await?;
    Ok(connection.close().await?)
}
