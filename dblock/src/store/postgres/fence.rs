//! The fence check in a user's transaction.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{error, sql};
use crate::store::fence::{
    FenceCheck, FenceConnection, FenceStatement, ReadsRelease, one_row, time_left, unreadable,
};
use crate::store::{StoreError, StoreErrorKind};

/// Returns the time left of each lease, or `None` when it is gone. One statement for all.
///
/// Until that transaction ends, nobody else can take the keys over. The server ends the transaction when it
/// has idled for the source's `idle_limit`. Otherwise a host that vanished would keep the keys busy until TCP
/// notices, which may take hours.
///
/// # Errors
/// [`StoreErrorKind::Conflict`] under REPEATABLE READ or stricter, when a row was written after the snapshot
/// (by a renewal, for example) or is not in the snapshot. The transaction can be tried again.
pub(crate) async fn verify(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let answers = ask(connection, checks, sql::verify).await?;
    let left = |answer: Option<String>| answer.as_deref().map(time_left).transpose();
    answers.into_iter().map(left).collect()
}

/// Frees the rows in the transaction: false for a lease that is gone. Others acquire the keys, and are woken,
/// when it commits. One statement for all.
///
/// # Errors
/// As [`verify`], and [`StoreErrorKind::Unsupported`] below a savepoint: rolled back to it, the transaction
/// would go on without the locks.
pub(crate) async fn release_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<bool>, StoreError> {
    let answers = ask(connection, checks, sql::release_in).await?;
    if answers.contains(&None) {
        // A lease is gone, or newer than the snapshot, which is an error of the check.
        verify(connection, checks).await?;
    }
    let released = |answer: Option<String>| match answer.as_deref() {
        None => Ok(false),
        Some(sql::RELEASED_WHOLE) => Ok(true),
        Some(sql::BELOW_SAVEPOINT) => Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "a lock cannot end with a savepoint: release it in the transaction itself, before `SAVEPOINT`",
        )),
        Some(other) => Err(unreadable(other)),
    };
    answers.into_iter().map(released).collect()
}

/// Whether this very transaction has written the row as released by the lease.
pub(crate) async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<ReadsRelease, StoreError> {
    let statement = check.statement(&sql::reads_release(&check.source.table));
    let row = one_row(connection, &statement, error::of_fence_check).await?;
    Ok(ReadsRelease::found(row.is_some()))
}

/// The answers of a statement; `None` for a lease that it does not find.
async fn ask(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
    sql: impl FnOnce(&str, Option<Duration>, usize) -> String,
) -> Result<Vec<Option<String>>, StoreError> {
    let Some(FenceCheck { source, .. }) = checks.first() else {
        return Ok(Vec::new());
    };
    let sql = sql(&source.table, source.idle_limit, checks.len());
    let values: Vec<_> = checks.iter().flat_map(FenceCheck::values).collect();
    let statement = FenceStatement::new(source.database, &sql, values)
        .behind_a_pooler(source.pooled.load(Ordering::Relaxed));
    let rows = connection
        .query(&statement)
        .await
        .map_err(error::of_fence_check)?;
    let mut answers = vec![None; checks.len()];
    for row in rows {
        let numbered = row.split_once(' ');
        let numbered = numbered.and_then(|(at, answer)| Some((at.parse::<usize>().ok()?, answer)));
        let place = numbered.and_then(|(at, answer)| Some((answers.get_mut(at)?, answer)));
        match place {
            Some((_, sql::NOT_IN_SNAPSHOT)) => {
                return Err(StoreError::new(
                    StoreErrorKind::Conflict,
                    "the transaction's snapshot is older than the lock's row, unless the transaction is on another \
                     database or schema: roll it back and begin it anew inside the lock, before anything is read",
                ));
            }
            Some((place @ None, answer)) => *place = Some(answer.to_owned()),
            _ => return Err(unreadable(&row)),
        }
    }
    Ok(answers)
}
