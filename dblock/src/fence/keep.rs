//! Locks that end with a transaction: the release is written into it, and is still there right before its
//! commit.

#[cfg(feature = "run_once")]
use super::statements::complete_in;
use super::statements::{reads_release, release_in, statement_failed};
use super::which_transaction::is_uncommitted;
use super::{answers_for, check_of, failed, prepare, refused, verify};
use crate::engine::{EngineHandle, Hold, Lease};
use crate::error::LockError;
use crate::options::LockOptions;
#[cfg(feature = "run_once")]
use crate::store::fence::Completion;
use crate::store::fence::{FenceConnection, FenceStatement};
use crate::store::{Database, StoreError, StoreErrorKind};

/// Refuses options that make no sense for a lock that ends with a transaction.
pub(crate) fn check_options(options: &LockOptions) -> Result<(), LockError> {
    if options.hold_min.is_some() {
        return Err(no_hold_min());
    }
    Ok(())
}

fn no_hold_min() -> LockError {
    LockError::invalid(
        "a lock with `hold_min` cannot end with a transaction: the row would be free before that time is over; leave \
         `hold_min` out, or release the lock after the commit",
    )
}

/// Whether the release is written into the transaction before the body runs. A transaction of SQLite keeps
/// every other writer out from there on, so there it is written last.
pub(crate) fn is_kept_at_once(hold: &Hold) -> bool {
    hold.engine()
        .fence_source(hold.lease().key())
        .is_none_or(|source| source.database != Database::Sqlite)
}

/// Writes the end of locks of one engine into the transaction, which keeps the keys from here on. After a
/// rollback the engine's own releases free the rows.
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
    for (lease, released) in leases.iter().zip(answers_for(&leases, released)?) {
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
    completion: &Completion<'_>,
) -> Result<(), LockError> {
    keep_leases(std::iter::once(lease), engine, transaction).await?;
    let source = check_of(lease, engine)?.source;
    let written = complete_in(transaction, source, completion).await;
    if written.map_err(|error| failed(lease, error))? {
        return Ok(());
    }
    let message = "the transaction does not see the record of this attempt: its snapshot is older than the attempt; roll \
                   it back and begin it in the body, before anything is read";
    Err(failed(lease, StoreError::new(StoreErrorKind::Conflict, message)))
}

/// Right before the commit: the transaction must still be the one that keeps the lock. If the body swallowed
/// an error that ended it, the commit would be a rollback, and its answer would not say so.
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
                   of MySQL do, or swallowed an error that ended it. What it did until then may stand: look at the data before you \
                   repeat the call";
    Err(failed(lease, StoreError::new(StoreErrorKind::Other, message)))
}

/// Ends with the transaction, however that ends.
const MARK: &str = "SAVEPOINT dblock";

/// Marks a transaction that does not keep the lock, so that [`confirm`] finds it again. Only MySQL goes on
/// after a transaction has ended; PostgreSQL refuses every statement then.
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
