//! The fence check in a user's transaction.

use std::time::Duration;

use super::{error, sql};
use crate::store::StoreError;
use crate::store::fence::{FenceCheck, FenceConnection, ReadsRelease, one_row, time_left, writes};

/// Returns the time left of each lease, or `None` when it is gone. A statement for each key costs no round
/// trip here.
///
/// The check writes (a column to its own value), so it needs SQLite's only write lock. A transaction whose
/// snapshot is older than the last commit then fails as a conflict and does not trust an old row. Until the
/// user's commit nobody else can take the lock over.
pub(crate) async fn verify(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let mut left = Vec::with_capacity(checks.len());
    for check in checks {
        let statement = check.statement(&sql::verify(&check.source.table));
        let answer = one_row(connection, &statement, error::of_fence_check).await?;
        left.push(answer.as_deref().map(time_left).transpose()?);
    }
    Ok(left)
}

/// Frees the rows in the transaction: false for a lease that is gone. Others acquire the keys when it
/// commits.
pub(crate) async fn release_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<bool>, StoreError> {
    let mut released = Vec::with_capacity(checks.len());
    for check in checks {
        let statement = check.statement(&sql::release_in(&check.source.table));
        released.push(writes(connection, &statement, error::of_fence_check).await?);
    }
    Ok(released)
}

/// Whether the transaction reads the row as released by the lease.
pub(crate) async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<ReadsRelease, StoreError> {
    let statement = check.statement(&sql::reads_release(&check.source.table));
    let row = one_row(connection, &statement, error::of_fence_check).await?;
    Ok(ReadsRelease::found(row.is_some()))
}
