//! The fence check in a user's transaction.

use std::time::Duration;

use super::{error, sql};
use crate::store::fence::{FenceCheck, FenceConnection, one_row, time_left, unreadable};
use crate::store::{StoreError, StoreErrorKind};

/// Returns the time left of the lease, or `None` when it is gone.
///
/// Until that transaction ends, nobody else can take the key over. The server ends the transaction when it
/// has idled for the source's `idle_limit`. Otherwise a host that vanished would keep the key busy until TCP notices,
/// which may take hours.
///
/// # Errors
/// [`StoreErrorKind::Conflict`] under REPEATABLE READ or stricter, when the row was written after the snapshot (by a
/// renewal, for example) or is not in the snapshot. The transaction can be tried again.
pub(crate) async fn verify(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<Option<Duration>, StoreError> {
    let statement = sql::verify(&check.source.table, check.source.idle_limit);
    match ask(connection, check, &statement).await? {
        None => Ok(None),
        Some(left) => time_left(&left).map(Some),
    }
}

/// Frees the row in the transaction: false when the lease is gone. Others acquire the key, and are woken, when it commits.
///
/// # Errors
/// As [`verify`], and [`StoreErrorKind::Unsupported`] below a savepoint: rolled back to it, the transaction would go on
/// without the lock.
pub(crate) async fn release_in(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<bool, StoreError> {
    let statement = sql::release_in(&check.source.table, check.source.idle_limit);
    match ask(connection, check, &statement).await?.as_deref() {
        None => Ok(false),
        Some(sql::RELEASED_WHOLE) => Ok(true),
        Some(sql::BELOW_SAVEPOINT) => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "a lock cannot end with a savepoint: release it in the transaction itself, before `SAVEPOINT`",
        )),
        Some(other) => Err(unreadable(other)),
    }
}

/// Whether this very transaction has written the row as released by the lease.
pub(crate) async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<bool, StoreError> {
    let statement = check.statement(&sql::reads_release(&check.source.table));
    let rows = connection.query(&statement).await;
    Ok(one_row(rows.map_err(error::of_fence_check)?)?.is_some())
}

/// The answer of a statement; `None` when it finds no such lease.
async fn ask(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
    sql: &str,
) -> Result<Option<String>, StoreError> {
    let rows = connection.query(&check.statement(sql)).await;
    let answer = one_row(rows.map_err(error::of_fence_check)?)?;
    if answer.as_deref() == Some(sql::NOT_IN_SNAPSHOT) {
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the transaction's snapshot is older than the lock's row, unless the transaction is on another database or \
             schema: roll it back and begin it anew inside the lock, before anything is read",
        ));
    }
    Ok(answer)
}
