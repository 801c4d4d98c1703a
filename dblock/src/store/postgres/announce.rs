//! Tells the waiters of reserved rows that leases are about to end.

use std::collections::HashSet;

use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::statement::Statement;
use super::{PostgresStore, errors};
use crate::store::Leave;
use crate::store::error::StoreError;

/// On an idle connection, as quick as can be: when it fails, the releases say the same a little later.
pub(super) async fn announce(store: &PostgresStore, leaves: &[Leave]) -> Result<Vec<bool>, StoreError> {
    let statement = if let [only] = leaves {
        Statement::new(&store.sql.announce_one)
            .bind(only.key.as_str())
            .bind(only.lease_id)
            .bind(only.word)
    } else {
        let keys: Vec<_> = leaves.iter().map(|leave| leave.key.as_str()).collect();
        let lease_ids: Vec<_> = leaves.iter().map(|leave| leave.lease_id).collect();
        let words: Vec<_> = leaves.iter().map(|leave| leave.word).collect();
        Statement::new(&store.sql.announce_many)
            .bind(keys)
            .bind(lease_ids)
            .bind(words)
    };
    let mut connection = store.connections.take().await?;
    let rows = statement
        .fetch_all(&mut connection)
        .await
        .map_err(|error| errors::of_statement(error, &store.table));
    let rows = connection.settle(rows)?;
    let told = told(&rows).map_err(|error| errors::of_statement(error, &store.table))?;
    let is_told = |leave: &Leave| told.contains(leave.key.as_str());
    Ok(leaves.iter().map(is_told).collect())
}

fn told(rows: &[PgRow]) -> Result<HashSet<&str>, sqlx::Error> {
    rows.iter().map(|row| row.try_get(0)).collect()
}
