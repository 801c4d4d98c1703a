//! Which transaction has written the release of a lock: this very one, or another.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::statements::reads_release;
use super::{check_of, failed};
use crate::engine::{EngineHandle, Lease, Turn};
use crate::error::LockError;
use crate::key::Key;
use crate::store::fence::{FenceCheck, FenceConnection};
use crate::store::{Database, InspectFilter, LockRow, Store, StoreError, StoreErrorKind};

/// Time limit of the manager's own read of a row.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A lock that ends with a transaction cannot be checked in another one: that would wait for the first.
pub(super) async fn same_transaction(
    lease: &Lease,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let check = check_of(lease, engine)?;
    if is_written_by(engine, &check, transaction).await? {
        return lease.check();
    }
    let message = "this lock ends with another transaction: do the work in that one";
    Err(failed(
        lease,
        StoreError::new(StoreErrorKind::Unsupported, message),
    ))
}

/// Whether this lock's release is written in this very transaction, and not committed.
pub(crate) async fn is_kept_by(
    engine: &EngineHandle,
    key: &Key,
    (lease_id, fence_token): (Uuid, i64),
    transaction: &mut dyn FenceConnection,
) -> Result<bool, LockError> {
    let Some(source) = engine.fence_source(key) else {
        return Ok(false);
    };
    let check = FenceCheck {
        source,
        key,
        lease_id,
        fence_token,
    };
    // The transaction is asked second: its first read may fix its snapshot, from before the lock that it
    // takes next.
    Ok(is_uncommitted(engine, &check).await? && is_written_by(engine, &check, transaction).await?)
}

/// Whether the row is still held by the lease for everybody else, perhaps beyond its ttl.
pub(super) async fn is_uncommitted(engine: &EngineHandle, check: &FenceCheck<'_>) -> Result<bool, LockError> {
    let row = committed_row(engine, check.key).await?;
    Ok(row.is_some_and(|row| row.lease_id == check.lease_id && row.reentrant_count > 0))
}

/// Whether this very transaction has released the lock.
async fn is_written_by(
    engine: &EngineHandle,
    check: &FenceCheck<'_>,
    transaction: &mut dyn FenceConnection,
) -> Result<bool, LockError> {
    let read = reads_release(transaction, check).await;
    let failed = |error| LockError::store_of(check.key, error);
    let read = read.map_err(failed)?;
    if !read || check.source.database == Database::Postgres {
        return Ok(read);
    }
    // Asked afterwards: if it is not committed even now, this transaction is the one that has written it.
    if is_uncommitted(engine, check).await? {
        return Ok(true);
    }
    Err(failed(StoreError::new(
        StoreErrorKind::Conflict,
        "another transaction that kept this lock has just ended: roll this one back and begin it anew",
    )))
}

/// The row of a key as the manager's own connections see it.
pub(super) async fn committed_row(engine: &EngineHandle, key: &Key) -> Result<Option<LockRow>, LockError> {
    let filter = InspectFilter::new().prefix(key.as_str()).include_free().limit(1);
    let read = |store: Arc<dyn Store>| async move { store.inspect(&filter).await };
    let rows = engine.run(Turn::Admin, READ_TIMEOUT, read).await?;
    Ok(rows.into_iter().find(|row| row.key == *key))
}
