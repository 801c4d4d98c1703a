//! How large table and index grow when one key is locked again and again.

use std::time::Instant;

use sqlx::{Connection as _, PgConnection, Row as _};

use super::Context;
use crate::measure::Figures;
use crate::servers::Place;
use crate::subject::{Kind, TIMEOUT, TTL, table_of};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockPostgres];

const TABLE: &str = "bench_bloat";

pub(super) async fn round(context: &mut Context<'_>, _: Kind) -> anyhow::Result<Figures> {
    let pairs = context.pace.pick(20_000, 200_000);
    let url = context.servers.url(Place::Postgres)?;
    let locks = table_of(&url, TABLE).await?;
    let start = Instant::now();
    for done in 1..=pairs {
        locks.lock("again").ttl(TTL).acquire().await?.release().await?;
        if done % (pairs / 10) == 0 {
            eprintln!("  bloat: {done} of {pairs} pairs");
        }
    }
    let time = start.elapsed().as_secs_f64();
    let mut connection = PgConnection::connect(&url).await?;
    let text = "SELECT pg_relation_size($1::regclass) / 8192, pg_indexes_size($1::regclass) / 8192";
    let row = sqlx::query(text).bind(TABLE).fetch_one(&mut connection).await?;
    let (table, index): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    connection.close().await?;
    locks.shutdown(TIMEOUT).await;
    let figures = Figures {
        per_s: Some(f64::from(pairs) / time),
        ..Figures::default()
    };
    Ok(figures
        .with("pairs", f64::from(pairs))
        .with("table_pages", table as f64)
        .with("index_pages", index as f64)
        .with("pages", (table + index) as f64))
}
