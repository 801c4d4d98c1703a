//! Statements of dblock in a transaction of yours, over any driver.
//!
//! [`verify_in`](crate::LockGuard::verify_in) asks in your transaction whether the lease is still held, and
//! [`release_in`](crate::LockGuard::release_in) writes its end there. Pass the transaction like this:
//!
//! | driver | what to pass |
//! |---|---|
//! | sqlx | `&mut tx`: a [`sqlx::Transaction`] on PostgreSQL, MySQL, MariaDB or SQLite |
//! | tokio-postgres, deadpool-postgres | `&mut fence(&tx)` of the crate `dblock-tokio-postgres` |
//! | SeaORM | `&mut fence(&tx)` of `dblock-sea-orm`, on PostgreSQL, MySQL, MariaDB or SQLite |
//! | diesel-async | `&mut fence(tx)` of `dblock-diesel-async`, on PostgreSQL, MySQL or MariaDB |
//! | any other | a type of yours that implements [`FenceConnection`] |

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use uuid::Uuid;

use crate::engine::{EngineHandle, Hold, Lease, Turn};
use crate::error::{LockError, LostReason};
use crate::key::Key;
use crate::options::LockOptions;
pub use crate::store::Database;
pub use crate::store::fence::{DriverError, FenceConnection, FenceStatement};
use crate::store::fence::{FenceCheck, driver_error};
use crate::store::{self, InspectFilter, LockRow, Store, StoreError, StoreErrorKind};

/// Time limit of the manager's own read of a row.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Calls a function that each database has, in the store of this one.
macro_rules! on {
    ($database:expr, $function:ident($($argument:expr),*) $($then:tt)*) => {
        match $database {
            #[cfg(feature = "postgres")]
            Database::Postgres => store::postgres::$function($($argument),*) $($then)*,
            #[cfg(feature = "mysql")]
            Database::MySql => store::mysql::$function($($argument),*) $($then)*,
            #[cfg(feature = "sqlite")]
            Database::Sqlite => store::sqlite::$function($($argument),*) $($then)*,
            #[cfg(not(all(feature = "postgres", feature = "mysql", feature = "sqlite")))]
            _ => unreachable!("the database of a lock, and of its transaction, is compiled in"),
        }
    };
}

/// Runs the check for leases of one engine.
pub(crate) async fn verify<'l>(
    leases: impl IntoIterator<Item = &'l Lease>,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    let (kept, leases): (Vec<_>, Vec<_>) = leases
        .into_iter()
        .partition(|lease| lease.is_kept_in_transaction());
    for lease in kept {
        same_transaction(lease, engine, transaction).await?;
    }
    let checks = prepare(&leases, engine).await?;
    let verified = verify_in(transaction, &checks).await;
    for (lease, left) in leases.iter().zip(answered(&leases, verified)?) {
        if left.is_none() {
            return Err(refused(lease, engine).await);
        }
        lease.check()?;
    }
    Ok(())
}

/// The answers for leases. An error names the first of them.
fn answered<T>(leases: &[&Lease], answers: Result<Vec<T>, StoreError>) -> Result<Vec<T>, LockError> {
    answers.map_err(|error| match leases {
        [first, ..] => failed(first, error),
        [] => LockError::store(error),
    })
}

/// Refuses options that make no sense for a lock that ends with a transaction.
pub(crate) fn check_options(options: &LockOptions) -> Result<(), LockError> {
    if options.hold_min.is_some() {
        return Err(no_hold_min());
    }
    Ok(())
}

fn no_hold_min() -> LockError {
    LockError::invalid(
        "a lock with `hold_min` cannot end with a transaction: the row would be free before that time is over",
    )
}

/// Whether the release is written into the transaction before the body runs. A transaction of SQLite keeps every other
/// writer out from there on, so there it is written last.
pub(crate) fn is_kept_at_once(hold: &Hold) -> bool {
    hold.engine()
        .fence_source(hold.lease().key())
        .is_none_or(|source| source.database != Database::Sqlite)
}

/// Writes the end of locks of one engine into the transaction, which keeps the keys from here on. After a rollback the
/// engine's own releases free the rows.
pub(crate) async fn keep(holds: &[Hold], transaction: &mut dyn FenceConnection) -> Result<(), LockError> {
    let Some(engine) = holds.first().map(Hold::engine) else {
        return Ok(());
    };
    keep_leases(holds.iter().map(Hold::lease), engine, transaction).await
}

async fn keep_leases<'l>(
    leases: impl Iterator<Item = &'l Lease> + Clone,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(), LockError> {
    if leases.clone().any(Lease::keeps_hold_min) {
        return Err(no_hold_min());
    }
    let (outer, leases): (Vec<_>, Vec<_>) =
        leases.partition(|lease| lease.hold_count() > 1 || lease.is_kept_in_transaction());
    verify(outer, engine, transaction).await?;
    let checks = prepare(&leases, engine).await?;
    let released = release_in(transaction, &checks).await;
    for (lease, released) in leases.iter().zip(answered(&leases, released)?) {
        if !released {
            return Err(refused(lease, engine).await);
        }
        lease.keep_in_transaction()?;
    }
    Ok(())
}

/// Writes the success of an attempt into the transaction, together with the end of its lock.
#[cfg(feature = "run_once")]
pub(crate) async fn complete(
    lease: &Lease,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
    completion: &store::fence::Completion<'_>,
) -> Result<(), LockError> {
    keep_leases(std::iter::once(lease), engine, transaction).await?;
    let source = check_of(lease, engine)?.source;
    let written: Result<bool, StoreError> = on!(
        source.database,
        complete_in(transaction, source, completion).await
    );
    if written.map_err(|error| failed(lease, error))? {
        return Ok(());
    }
    let message = "the transaction does not see the record of this attempt: its snapshot is older than the attempt; roll \
                   it back and begin it in the body, before anything is read";
    Err(failed(lease, StoreError::new(StoreErrorKind::Conflict, message)))
}

/// Right before the commit: the transaction must still be the one that keeps the lock. If the body swallowed an error that
/// ended it, the commit would be a rollback, and its answer would not say so.
pub(crate) async fn confirm(hold: &Hold, transaction: &mut dyn FenceConnection) -> Result<(), LockError> {
    let (lease, engine) = (hold.lease(), hold.engine());
    let check = check_of(lease, engine)?;
    let stands = if lease.is_kept_in_transaction() {
        reads_release(transaction, &check).await
    } else {
        // An outer hold goes on, whose lease was checked in this transaction.
        lease.check()?;
        is_marked(transaction).await
    };
    let stands = match stands {
        Ok(stands) => stands,
        // On MySQL a transaction that is over goes on as single statements, each of which stands.
        Err(error)
            if error.kind() == StoreErrorKind::Conflict && check.source.database == Database::MySql =>
        {
            false
        }
        Err(error) => return Err(failed(lease, error)),
    };
    // Elsewhere a release that is committed reads the same.
    let committed = check.source.database != Database::Postgres && lease.is_kept_in_transaction();
    if stands && (!committed || is_uncommitted(engine, &check).await?) {
        return Ok(());
    }
    // Never taken for a conflict: what the body has committed by itself would be done again.
    let message = "the transaction that keeps the lock was over before its commit: the body ended it, as some statements \
                   of MySQL do, or swallowed an error that ended it. What it did until then may stand";
    Err(failed(lease, StoreError::new(StoreErrorKind::Other, message)))
}

/// Ends with the transaction, however that ends.
const MARK: &str = "SAVEPOINT dblock";

/// Marks a transaction that does not keep the lock, so that [`confirm`] finds it again. Only MySQL goes on after a
/// transaction has ended; PostgreSQL refuses every statement then.
pub(crate) async fn mark(hold: &Hold, transaction: &mut dyn FenceConnection) -> Result<(), LockError> {
    if hold.lease().is_kept_in_transaction() || transaction.database() != Database::MySql {
        return Ok(());
    }
    let statement = FenceStatement::new(Database::MySql, MARK, []);
    let marked = transaction.execute(&statement).await;
    marked
        .map(drop)
        .map_err(|error| failed(hold.lease(), statement_failed(Database::MySql, error)))
}

async fn is_marked(transaction: &mut dyn FenceConnection) -> Result<bool, StoreError> {
    let database = transaction.database();
    let look = match database {
        Database::MySql => "RELEASE SAVEPOINT dblock",
        _ => "SELECT 'open'",
    };
    let statement = FenceStatement::new(database, look, []);
    let found = match database {
        Database::MySql => transaction.execute(&statement).await.map(drop),
        _ => transaction.query(&statement).await.map(drop),
    };
    match found {
        Ok(()) => Ok(true),
        // There is no such savepoint any more.
        Err(error) if error.code() == Some("1305") => Ok(false),
        Err(error) => Err(statement_failed(database, error)),
    }
}

/// A lock that ends with a transaction cannot be checked in another one: that would wait for the first.
async fn same_transaction(
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
    // The transaction is asked second: its first read may fix its snapshot, from before the lock that it takes next.
    Ok(is_uncommitted(engine, &check).await? && is_written_by(engine, &check, transaction).await?)
}

/// Whether the row is still held by the lease for everybody else, perhaps beyond its ttl.
async fn is_uncommitted(engine: &EngineHandle, check: &FenceCheck<'_>) -> Result<bool, LockError> {
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

/// From here on the locks leave this process through the store only, and the rows name the owners.
async fn prepare<'a>(
    leases: &[&'a Lease],
    engine: &'a EngineHandle,
) -> Result<Vec<FenceCheck<'a>>, LockError> {
    let prepare = async |lease: &'a Lease| {
        lease.check()?;
        let check = check_of(lease, engine)?;
        // A transaction of SQLite keeps every other writer out, so there the statement itself writes the token.
        lease.pin(check.source.database != Database::Sqlite).await?;
        Ok::<_, LockError>(check)
    };
    let checks = try_join_all(leases.iter().map(|lease| prepare(lease))).await?;
    if let [first, others @ ..] = &checks[..]
        && others
            .iter()
            .any(|other| !std::ptr::eq(other.source, first.source))
    {
        let message = "these locks are on several shards, and a transaction is on one: check or release in it only locks \
                       of its own shard";
        return Err(failed(
            leases[0],
            StoreError::new(StoreErrorKind::Unsupported, message),
        ));
    }
    Ok(checks)
}

fn check_of<'a>(lease: &'a Lease, engine: &'a EngineHandle) -> Result<FenceCheck<'a>, LockError> {
    let source = engine.fence_source(lease.key()).ok_or_else(|| {
        let error = StoreError::new(
            StoreErrorKind::Unsupported,
            "this store has no transactions to check a fence token in; of a `ShardedStore` that is moving, that is so for \
             keys that move",
        );
        failed(lease, error)
    })?;
    Ok(FenceCheck {
        source,
        key: lease.key(),
        lease_id: lease.id(),
        fence_token: lease.fence_token(),
    })
}

async fn verify_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<Option<Duration>>, StoreError> {
    let Some(first) = checks.first() else {
        return Ok(Vec::new());
    };
    let database = expect(connection, first)?;
    on!(database, verify(connection, checks).await)
}

async fn release_in(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
) -> Result<Vec<bool>, StoreError> {
    let Some(first) = checks.first() else {
        return Ok(Vec::new());
    };
    let database = expect(connection, first)?;
    on!(database, release_in(connection, checks).await)
}

/// Whether the transaction reads the row as released by this lease.
async fn reads_release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<bool, StoreError> {
    let database = expect(connection, check)?;
    on!(database, reads_release(connection, check).await)
}

/// The error of a transaction that did not begin.
pub(crate) fn begin_failed(error: sqlx::Error) -> StoreError {
    let message = format!("the transaction cannot begin: {error}");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// The error of a commit. Without an answer of the database's it may have been carried out, and must not be called
/// retryable, as a request of ours may be.
pub(crate) fn commit_failed(database: Database, error: sqlx::Error) -> StoreError {
    let error = statement_failed(database, driver_error(database, error));
    if error.is_outcome_unknown() {
        let message = format!("it is unknown whether the transaction was committed: {error}");
        return StoreError::new(StoreErrorKind::Other, message).with_source(error);
    }
    error
}

fn statement_failed(database: Database, error: DriverError) -> StoreError {
    on!(database, of_fence_check(error))
}

/// The database of both. Refuses a transaction on another kind of database.
fn expect(connection: &dyn FenceConnection, check: &FenceCheck<'_>) -> Result<Database, StoreError> {
    let (found, kept) = (connection.database(), check.source.database);
    if found == kept {
        return Ok(kept);
    }
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        format!(
            "the transaction is on {found:?}, but the lock is kept on {kept:?}; a fence check needs a transaction on the \
             database that keeps the lock"
        ),
    ))
}

pub(crate) fn failed(lease: &Lease, error: StoreError) -> LockError {
    LockError::store_of(lease.key(), error)
}

/// The reason why the transaction does not see the lease.
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
    // When the store cannot be asked, the transaction's answer stands.
    let row = committed_row(engine, lease.key()).await.unwrap_or_default();
    row.is_some_and(|row| row.lease_id == lease.id() && row.is_held())
}

/// The row of a key as the manager's own connections see it.
async fn committed_row(engine: &EngineHandle, key: &Key) -> Result<Option<LockRow>, LockError> {
    let filter = InspectFilter::new().prefix(key.as_str()).include_free().limit(1);
    let read = |store: Arc<dyn Store>| async move { store.inspect(&filter).await };
    let rows = engine.run(Turn::Admin, READ_TIMEOUT, read).await?;
    Ok(rows.into_iter().find(|row| row.key == *key))
}
