//! The fence check: it asks, in a user's transaction, whether a lease is still held.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::engine::{EngineHandle, Hold, Lease};
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::store::{Database, FenceSource, InspectFilter, Store, StoreError, StoreErrorKind, StoreFuture};

/// Time limit of the manager's own read of a row.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection or transaction of sqlx on which a fence check can run. Implemented for
/// [`sqlx::Transaction`] and the connections of the compiled-in databases; nobody else can implement it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a transaction in which a fence token can be checked",
    label = "expected a transaction of sqlx on the database that keeps the lock",
    note = "begin a transaction, `let mut tx = pool.begin().await?;`, and pass it: `verify_in(&mut tx)`",
    note = "the database needs its feature of dblock: `postgres`, `mysql` or `sqlite`"
)]
pub trait FenceConnection: Send + sealed::Sealed {
    #[doc(hidden)]
    fn verify<'a>(
        &'a mut self,
        check: &'a FenceCheck<'a>,
    ) -> StoreFuture<'a, Result<Option<Duration>, StoreError>>;

    #[doc(hidden)]
    fn release<'a>(&'a mut self, check: &'a FenceCheck<'a>) -> StoreFuture<'a, Result<bool, StoreError>>;
}

/// The lease that a fence check looks for.
#[doc(hidden)]
#[derive(Debug)]
pub struct FenceCheck<'a> {
    source: &'a FenceSource,
    key: &'a Key,
    lease_id: Uuid,
    fence_token: i64,
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! fence_connection {
    ($feature:literal, $database:ident, $driver:ty, $connection:ty, $module:ident $(, $limit:ident)?) => {
        #[cfg(feature = $feature)]
        impl sealed::Sealed for $connection {}

        #[cfg(feature = $feature)]
        #[diagnostic::do_not_recommend]
        impl FenceConnection for $connection {
            fn verify<'a>(
                &'a mut self,
                check: &'a FenceCheck<'a>,
            ) -> StoreFuture<'a, Result<Option<Duration>, StoreError>> {
                Box::pin(async move {
                    check.expect(Database::$database)?;
                    let FenceCheck {
                        source,
                        key,
                        lease_id,
                        fence_token,
                    } = *check;
                    let table = &source.table;
                    crate::store::$module::verify(self, table, key, lease_id, fence_token $(, source.$limit)?).await
                })
            }

            fn release<'a>(&'a mut self, check: &'a FenceCheck<'a>) -> StoreFuture<'a, Result<bool, StoreError>> {
                Box::pin(async move {
                    check.expect(Database::$database)?;
                    let FenceCheck {
                        source,
                        key,
                        lease_id,
                        fence_token,
                    } = *check;
                    let table = &source.table;
                    crate::store::$module::release_in(self, table, key, lease_id, fence_token $(, source.$limit)?).await
                })
            }
        }

        #[cfg(feature = $feature)]
        impl sealed::Sealed for sqlx::Transaction<'_, $driver> {}

        #[cfg(feature = $feature)]
        #[diagnostic::do_not_recommend]
        impl FenceConnection for sqlx::Transaction<'_, $driver> {
            fn verify<'a>(
                &'a mut self,
                check: &'a FenceCheck<'a>,
            ) -> StoreFuture<'a, Result<Option<Duration>, StoreError>> {
                <$connection as FenceConnection>::verify(&mut **self, check)
            }

            fn release<'a>(&'a mut self, check: &'a FenceCheck<'a>) -> StoreFuture<'a, Result<bool, StoreError>> {
                <$connection as FenceConnection>::release(&mut **self, check)
            }
        }
    };
}

fence_connection!(
    "postgres",
    Postgres,
    sqlx::Postgres,
    sqlx::PgConnection,
    postgres,
    idle_limit
);
fence_connection!("mysql", MySql, sqlx::MySql, sqlx::MySqlConnection, mysql);
fence_connection!("sqlite", Sqlite, sqlx::Sqlite, sqlx::SqliteConnection, sqlite);

impl FenceCheck<'_> {
    fn expect(&self, database: Database) -> Result<(), StoreError> {
        if self.source.database == database {
            return Ok(());
        }
        Err(StoreError::new(
            StoreErrorKind::Unsupported,
            format!(
                "the transaction is on {database:?}, but the lock is kept on {:?}; a fence check needs a \
                 transaction on the database that keeps the lock",
                self.source.database
            ),
        ))
    }
}

/// Runs the check for `lease`.
pub(crate) async fn verify(
    lease: &Lease,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let check = prepare(lease, engine).await?;
    let verified = transaction.verify(&check).await;
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
    if transaction
        .release(&check)
        .await
        .map_err(|error| failed(lease, error))?
    {
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
