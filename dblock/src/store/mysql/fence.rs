//! The fence check in a user's transaction.

use std::time::{Duration, Instant};

use super::{error, sql};
use crate::store::fence::{FenceCheck, FenceConnection, ReadsRelease, one_row, time_left, writes};
use crate::store::{StoreError, StoreErrorKind};

/// Locks the rows of the keys for sharing and returns the time left of each lease, `None` when it is gone.
/// From here to the end of the user's transaction nobody else can take the locks over.
///
/// Each key has a statement of its own: for several the server would choose a plan, which on a small table
/// may be a scan, and a scan locks other rows too.
pub(crate) async fn verify(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let mut left = Vec::with_capacity(checks.len());
    for check in checks {
        // MariaDB has no FOR SHARE.
        left.push(lock(connection, check, "LOCK IN SHARE MODE").await?);
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
        released.push(release(connection, check).await?);
    }
    Ok(released)
}

async fn release(connection: &mut dyn FenceConnection, check: &FenceCheck<'_>) -> Result<bool, StoreError> {
    if lock(connection, check, "FOR UPDATE").await?.is_none() {
        return Ok(false);
    }
    let statement = check.statement(&sql::release_in(&check.source.table));
    writes(connection, &statement, error::of_fence_check).await
}

/// Whether the row is released by the lease, and no other transaction has it locked: then this one has
/// written that, or another one that has ended meanwhile.
///
/// A locking read, because a plain one would fix the transaction's snapshot, from before the lock that it
/// waits for next, and would see under READ UNCOMMITTED what another transaction has not committed.
///
/// When the release is taken back, this transaction keeps the row locked from here on.
pub(crate) async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<ReadsRelease, StoreError> {
    let statement = check.statement(&sql::reads_release(&check.source.table));
    let row = one_row(connection, &statement, error::of_fence_check).await?;
    Ok(match row.as_deref() {
        None => ReadsRelease::NotWritten,
        Some("0") => ReadsRelease::Written,
        Some(_) => ReadsRelease::TakenBack,
    })
}

/// The time left of the lease, whose row is locked by `how` from here on.
///
/// The statement reads the clock when it starts, and may then wait for the row. So the time that it took
/// counts as passed, and where too little is left then, it is asked again, on a row that is locked already.
async fn lock(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
    how: &str,
) -> Result<Option<Duration>, StoreError> {
    let asked = Instant::now();
    match ask(connection, check, how).await? {
        Some(left) if left <= asked.elapsed() => ask(connection, check, how).await,
        answer => Ok(answer),
    }
}

async fn ask(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
    how: &str,
) -> Result<Option<Duration>, StoreError> {
    let statement = check.statement(&sql::verify(&check.source.table, how));
    let row = one_row(connection, &statement, error::of_fence_check).await?;
    match row.as_deref() {
        None | Some(sql::GONE) => Ok(None),
        Some(sql::STALE_SNAPSHOT) => Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the transaction's snapshot is older than the lock: roll it back and begin it anew inside the lock, \
             before anything is read",
        )),
        Some(left) => time_left(left).map(Some),
    }
}
