//! Which transaction has written the release of a lock: this very one, or another.

use std::time::Duration;

use dblock_core::machine::key::{Kept, Left};

use super::{check_of, failed};
use crate::Key;
use crate::LockError;
use crate::engine::{EngineHandle, Lease, STORE_TIMEOUT};
use crate::store::fence::{FenceCheck, FenceConnection, ReadsRelease};
use crate::store::{LockRow, StoreError, StoreErrorKind};

/// A lock that ends with a transaction cannot be checked in another one: that would wait for the first.
pub(super) async fn same_transaction(
    lease: &Lease,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let check = check_of(lease)?;
    let (kind, message) = match keeper(lease.engine(), &check, STORE_TIMEOUT, transaction).await? {
        Keeper::This => return lease.check(),
        Keeper::Another => return Err(failed(lease, ends_with_another())),
        // Never retryable: what was committed until then, or by single statements since, would be done again.
        Keeper::Over => (
            StoreErrorKind::Other,
            format!("the transaction that kept the lock is over: {LOOK_AT_THE_DATA}"),
        ),
        Keeper::Unknown(LockError::Store { source, .. }) if source.is_retryable() => (
            StoreErrorKind::Other,
            format!(
                "nobody knows whether the transaction still keeps the lock ({source}): {LOOK_AT_THE_DATA}"
            ),
        ),
        Keeper::Unknown(error) => return Err(error),
    };
    Err(failed(lease, StoreError::new(kind, message)))
}

/// As [`same_transaction`], for a lock whose lease is checked before the commit: nothing is locked before that.
pub(super) async fn marked_transaction(
    lease: &Lease,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let source = check_of(lease)?.source;
    let by_lease = source.dialect_in(transaction);
    let by_lease = by_lease.map(|dialect| dialect.by_lease(source));
    let Some(by_lease) = by_lease.map_err(|error| failed(lease, error))? else {
        return Err(failed(lease, ends_with_another()));
    };
    let mark = source.query(transaction, by_lease.mark, []).await;
    let mark = mark.map_err(|error| failed(lease, error))?;
    if mark
        .first()
        .is_some_and(|mark| *mark == lease.transaction_mark().to_string())
    {
        return lease.check();
    }
    Err(failed(lease, ends_with_another()))
}

fn ends_with_another() -> StoreError {
    let message = "this lock ends with another transaction: do the work in that one";
    StoreError::new(StoreErrorKind::Unsupported, message)
}

const LOOK_AT_THE_DATA: &str =
    "what was done until now may stand, so look at the data before you repeat the call";

/// The transaction that keeps a lock.
enum Keeper {
    This,
    Another,
    /// None: the one that kept it has ended, and it may have been this one.
    Over,
    /// The manager's own read has failed.
    Unknown(LockError),
}

/// Whether this lock's release is written in this very transaction, and not committed. The manager's own
/// reads of the row may take `limit` each.
pub(crate) async fn is_kept_by(
    engine: &EngineHandle,
    key: &Key,
    left: Left,
    limit: Duration,
    transaction: &mut dyn FenceConnection,
) -> Result<bool, LockError> {
    let Some(source) = engine.fence_source(key) else {
        return Ok(false);
    };
    // To ask would lock the row, which others may have by now.
    if left.kept == Kept::Key && !source.dialect.takes_in_theirs() {
        return Ok(false);
    }
    let check = FenceCheck {
        source,
        key,
        lease_id: left.lease_id,
        fence_token: left.fence_token,
    };
    // The transaction is asked second: its first read may fix its snapshot, from before the lock that it
    // takes next. What was taken only the transaction sees that has taken it.
    if left.kept == Kept::Lease && !is_uncommitted(engine, &check, limit).await? {
        return Ok(false);
    }
    match keeper(engine, &check, limit, transaction).await? {
        Keeper::This => Ok(true),
        Keeper::Another => Ok(false),
        // Nothing was done under a lock of this call's.
        Keeper::Over => Err(LockError::store_of(
            check.key,
            StoreError::new(
                StoreErrorKind::Conflict,
                "another transaction that kept this lock has just ended: roll this one back and begin it anew",
            ),
        )),
        Keeper::Unknown(error) => Err(error),
    }
}

/// Whether the row is for everybody else still as it was before the transaction wrote it: held by the lease, perhaps
/// beyond its ttl, or with an older token, where the transaction has taken the key.
async fn is_uncommitted(
    engine: &EngineHandle,
    check: &FenceCheck<'_>,
    limit: Duration,
) -> Result<bool, LockError> {
    let row = committed_row(engine, check.key, limit).await?;
    Ok(row.is_some_and(|row| {
        if row.lease_id == check.lease_id {
            row.reentrant_count > 0
        } else {
            row.fence_token < check.fence_token
        }
    }))
}

/// Whether this very transaction has released the lock. An error is that of its own statement.
async fn keeper(
    engine: &EngineHandle,
    check: &FenceCheck<'_>,
    limit: Duration,
    transaction: &mut dyn FenceConnection,
) -> Result<Keeper, LockError> {
    let failed = |error| LockError::store_of(check.key, error);
    let dialect = check.source.dialect_in(transaction).map_err(failed)?;
    match dialect.reads_release(transaction, check).await.map_err(failed)? {
        ReadsRelease::WrittenHere => return Ok(Keeper::This),
        ReadsRelease::NotWritten => return Ok(Keeper::Another),
        ReadsRelease::TakenBack => return Ok(Keeper::Over),
        ReadsRelease::Written => {}
    }
    // Asked afterwards: if it is not committed even now, this transaction is the one that has written it.
    Ok(match is_uncommitted(engine, check, limit).await {
        Ok(true) => Keeper::This,
        Ok(false) => Keeper::Over,
        Err(error) => Keeper::Unknown(error),
    })
}

/// The row of a key as the manager's own connections see it. Calls that ask at once share a read, and none of
/// them waits for an operator.
///
/// On MySQL a savepoint would tell without a connection of ours. But to ask for it is to release it, and
/// with it all savepoints that the user has made since.
pub(crate) async fn committed_row(
    engine: &EngineHandle,
    key: &Key,
    limit: Duration,
) -> Result<Option<LockRow>, LockError> {
    let read = engine.within(Some(limit), engine.row(key)).await;
    read.unwrap_or_else(|| {
        let message = format!("the lock's own database has not answered within {limit:?}");
        Err(LockError::store_of(
            key,
            StoreError::new(StoreErrorKind::Interrupted, message),
        ))
    })
}
