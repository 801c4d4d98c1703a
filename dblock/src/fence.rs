//! The fence check: it asks, in a user's transaction, whether a lease is still held. Any driver can run it: see
//! [`FenceConnection`].

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{EngineHandle, Hold, Lease};
use crate::error::{LockError, LostReason};
pub use crate::store::Database;
use crate::store::fence::FenceCheck;
pub use crate::store::fence::{DriverError, FenceConnection, FenceStatement};
use crate::store::{self, InspectFilter, Store, StoreError, StoreErrorKind};

/// Time limit of the manager's own read of a row.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the check for `lease`.
pub(crate) async fn verify(
    lease: &Lease,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let check = prepare(lease, engine).await?;
    let verified = ask(transaction, &check).await;
    if verified.map_err(|error| failed(lease, error))?.is_some() {
        return lease.check();
    }
    Err(refused(lease, engine).await)
}

/// Writes the end of `hold` into the transaction. The release that the engine sends by itself finds the row locked
/// until the transaction ends; after a rollback it frees the row.
pub(crate) async fn release(hold: Hold, transaction: &mut dyn FenceConnection) -> Result<(), LockError> {
    let (lease, engine) = (hold.lease(), hold.engine());
    if lease.keeps_hold_min() {
        return Err(LockError::invalid(
            "a lock with `hold_min` cannot end with a transaction: the row would be free before that time is over",
        ));
    }
    if lease.hold_count() > 1 {
        return verify(lease, engine, transaction).await;
    }
    let check = prepare(lease, engine).await?;
    let released = release_in(transaction, &check).await;
    if released.map_err(|error| failed(lease, error))? {
        return Ok(());
    }
    Err(refused(lease, engine).await)
}

/// From here on the lock leaves this process through the store only, and the row names the owner.
async fn prepare<'a>(lease: &'a Lease, engine: &'a EngineHandle) -> Result<FenceCheck<'a>, LockError> {
    lease.check()?;
    let source = engine.fence_source().ok_or_else(|| {
        let error = StoreError::new(
            StoreErrorKind::Unsupported,
            "this store has no transactions to check a fence token in",
        );
        failed(lease, error)
    })?;
    // A transaction of SQLite keeps every other writer out, so there the statement itself writes the token.
    lease.pin(source.database != Database::Sqlite).await?;
    Ok(FenceCheck {
        source,
        key: lease.key(),
        lease_id: lease.id(),
        fence_token: lease.fence_token(),
    })
}

/// Asks the database of `connection`.
async fn ask(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<Option<Duration>, StoreError> {
    expect(connection, check)?;
    match check.source.database {
        #[cfg(feature = "postgres")]
        Database::Postgres => store::postgres::verify(connection, check).await,
        #[cfg(feature = "mysql")]
        Database::MySql => store::mysql::verify(connection, check).await,
        #[cfg(feature = "sqlite")]
        Database::Sqlite => store::sqlite::verify(connection, check).await,
        #[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
        _ => unreachable!("a fence source comes from a store that is compiled in"),
    }
}

/// Frees the row in the transaction of `connection`.
async fn release_in(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<bool, StoreError> {
    expect(connection, check)?;
    match check.source.database {
        #[cfg(feature = "postgres")]
        Database::Postgres => store::postgres::release_in(connection, check).await,
        #[cfg(feature = "mysql")]
        Database::MySql => store::mysql::release_in(connection, check).await,
        #[cfg(feature = "sqlite")]
        Database::Sqlite => store::sqlite::release_in(connection, check).await,
        #[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
        _ => unreachable!("a fence source comes from a store that is compiled in"),
    }
}

/// Refuses a transaction on another kind of database.
fn expect(connection: &dyn FenceConnection, check: &FenceCheck<'_>) -> Result<(), StoreError> {
    let (found, kept) = (connection.database(), check.source.database);
    if found == kept {
        return Ok(());
    }
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        format!(
            "the transaction is on {found:?}, but the lock is kept on {kept:?}; a fence check needs a transaction on the \
             database that keeps the lock"
        ),
    ))
}

fn failed(lease: &Lease, source: StoreError) -> LockError {
    LockError::Store {
        key: Some(lease.key().clone()),
        waited: Duration::ZERO,
        source,
    }
}

/// Why the transaction does not see the lease.
async fn refused(lease: &Lease, engine: &EngineHandle) -> LockError {
    if is_held_elsewhere(lease, engine).await {
        let error = StoreError::new(
            StoreErrorKind::Unsupported,
            "the transaction does not see this lease, but the lock's own database does: the transaction is on \
             another database, file or schema, or its snapshot is older than the lease",
        );
        return failed(lease, error);
    }
    lease.end_as_gone();
    lease.lost(lease.lost_reason().unwrap_or(LostReason::Gone))
}

/// Whether the manager's own connections see the lease that the transaction did not see. A plain read: the
/// transaction may have locked the row.
async fn is_held_elsewhere(lease: &Lease, engine: &EngineHandle) -> bool {
    let filter = InspectFilter::new().prefix(lease.key().as_str()).limit(1);
    let read = |store: Arc<dyn Store>| async move { store.inspect(&filter).await };
    // When the store cannot be asked, the transaction's answer stands.
    let rows = engine.run(READ_TIMEOUT, read).await.unwrap_or_default();
    rows.iter()
        .any(|row| row.key == *lease.key() && row.lease_id == lease.id())
}
