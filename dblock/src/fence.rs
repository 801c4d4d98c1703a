//! The fence check: it asks, in a user's transaction, whether a lease is still held.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::engine::{EngineHandle, Lease};
use crate::error::LockError;
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
    lease.check()?;
    let failed = |source| LockError::Store {
        key: Some(lease.key().clone()),
        waited: Duration::ZERO,
        source,
    };
    let source = engine.fence_source().ok_or_else(|| {
        failed(StoreError::new(
            StoreErrorKind::Unsupported,
            "this store has no transactions to check a fence token in",
        ))
    })?;
    // A transaction of SQLite keeps every other writer out, so there the check itself writes the token.
    lease.pin(source.database != Database::Sqlite).await?;
    let check = FenceCheck {
        source,
        key: lease.key(),
        lease_id: lease.id(),
        fence_token: lease.fence_token(),
    };
    if transaction.verify(&check).await.map_err(failed)?.is_some() {
        return lease.check();
    }
    if is_held_elsewhere(lease, engine).await {
        return Err(failed(StoreError::new(
            StoreErrorKind::Unsupported,
            "the transaction does not see this lease, but the lock's own database does: the transaction is on \
             another database, file or schema, or its snapshot is older than the lease",
        )));
    }
    lease.end_as_gone();
    lease.check()
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
