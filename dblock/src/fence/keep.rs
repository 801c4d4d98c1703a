//! Locks that end with a transaction: the release is written into it, and is still there right before its
//! commit.

use sqlx::Transaction;

use super::{answers_for, check_of, dialect_of, failed, prepare, refused, verify};
use crate::LockOptions;
use crate::engine::{EngineHandle, Hold, Lease};
#[cfg(feature = "run_once")]
use crate::store::fence::Completion;
use crate::store::fence::{self, FenceConnection, PoolId, TransactionId};
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason};

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

/// Whether the release is written into the transaction before the body runs. Where that would keep every other
/// writer out, it is written last.
pub(crate) fn is_kept_at_once(hold: &Hold) -> bool {
    let source = hold.engine().fence_source(hold.lease().key());
    source.is_none_or(|source| !source.dialect.has_one_writer())
}

/// How a transaction keeps its lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// It has taken the key itself: a rollback frees that too.
    Taken(TransactionId),
    /// It has written the release before the body. Without an id an outer hold goes on.
    AtOnce(Option<TransactionId>),
    /// The release is its last statement.
    AtTheEnd,
    /// By nothing: the lease goes on, and is checked right before the commit. So it can be handed over without the
    /// store.
    ByLease,
}

impl Kept {
    fn id(self) -> Option<TransactionId> {
        match self {
            Self::Taken(id) => Some(id),
            Self::AtOnce(id) => id,
            Self::AtTheEnd | Self::ByLease => None,
        }
    }
}

/// Begins to end the lock with a transaction that has just begun.
///
/// The lease goes on only where the check before the commit is no surprise: the pool is known to be of the lock's
/// database, and a statement of its transactions sees what others wrote since they began.
pub(crate) async fn keeps(
    hold: &Hold,
    options: &LockOptions,
    pool: PoolId,
    transaction: &mut dyn FenceConnection,
) -> Result<Kept, LockError> {
    let lease = hold.lease();
    let source = hold.engine().fence_source(lease.key());
    if source.is_some_and(|source| source.dialect.has_one_writer()) {
        return Ok(Kept::AtTheEnd);
    }
    let is_known = source.is_some_and(|source| source.pools.may_check_last(pool));
    if options.renew && lease.hold_count() == 1 && !lease.is_kept_in_transaction() && is_known {
        return Ok(Kept::ByLease);
    }
    Ok(Kept::AtOnce(keep_at_once(hold, transaction).await?))
}

/// Writes the end of locks of one engine into the transaction, which keeps the keys from here on. After a
/// rollback the engine's own releases free the rows. Returns the transaction's id, unless other holds keep all of
/// the locks.
pub(crate) async fn keep(
    holds: &[Hold],
    transaction: &mut dyn FenceConnection,
) -> Result<Option<TransactionId>, LockError> {
    let Some(engine) = holds.first().map(Hold::engine) else {
        return Ok(None);
    };
    // Calls inside of the transaction may enter again when it keeps the keys.
    let (_closed, id) = keep_leases(holds.iter().map(Hold::lease), engine, transaction).await?;
    Ok(id)
}

/// As [`keep`], before a body begins: nothing was done under a lease of its own, so a store that is down until that
/// runs out is no more than that.
pub(crate) async fn keep_at_once(
    hold: &Hold,
    transaction: &mut dyn FenceConnection,
) -> Result<Option<TransactionId>, LockError> {
    let alone = hold.lease().hold_count() == 1;
    let kept = keep(std::slice::from_ref(hold), transaction).await;
    kept.map_err(|error| match error.before_the_work() {
        LockError::Lost {
            key,
            reason: LostReason::Expired,
            held,
            ..
        } if alone => LockError::store_after(
            key,
            held,
            StoreError::new(
                StoreErrorKind::Interrupted,
                "the database has not confirmed the lock before its lease ran out; nothing was done under it",
            ),
        ),
        error => error,
    })
}

/// Keeps the leases that it could close, and checks the others, whose locks go on with another hold or end with
/// what keeps them already. One step decides which it is, so nobody enters a lock that ends.
async fn keep_leases<'l>(
    leases: impl Iterator<Item = &'l Lease> + Clone,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
) -> Result<(Vec<Closed<'l>>, Option<TransactionId>), LockError> {
    if leases.clone().any(Lease::keeps_hold_min) {
        return Err(no_hold_min());
    }
    let (mut closed, mut others) = (Vec::new(), Vec::new());
    for lease in leases {
        if !lease.is_kept_in_transaction() && lease.close() {
            closed.push(Closed(lease));
        } else {
            others.push(lease);
        }
    }
    verify(others, engine, transaction).await?;
    let leases: Vec<_> = closed.iter().map(|closed| closed.0).collect();
    let checks = prepare(&leases, engine).await?;
    let Some(dialect) = dialect_of(&checks, transaction)? else {
        return Ok((closed, None));
    };
    let released = dialect.release(transaction, &checks).await;
    let mut id = None;
    for (lease, released) in leases.iter().zip(answers_for(&leases, released)?) {
        if released.is_none() {
            return Err(refused(lease, engine).await);
        }
        id = released;
        lease.keep_in_transaction()?;
    }
    Ok((closed, id))
}

/// Writes the success of an attempt into the transaction, together with the end of its lock.
#[cfg(feature = "run_once")]
pub(crate) async fn complete(
    lease: &Lease,
    engine: &EngineHandle,
    transaction: &mut dyn FenceConnection,
    completion: &Completion<'_>,
) -> Result<(), LockError> {
    let (closed, _) = keep_leases(std::iter::once(lease), engine, transaction).await?;
    let source = check_of(lease, engine)?.source;
    let written = completion.write(transaction, source).await;
    if written.map_err(|error| failed(lease, error))? {
        // What would enter the lock from here on would stay when the transaction ends it.
        closed.into_iter().for_each(std::mem::forget);
        return Ok(());
    }
    let message = "the transaction does not see the record of this attempt: its snapshot is older than the attempt; roll \
                   it back and begin it in the body, before anything is read";
    Err(failed(lease, StoreError::new(StoreErrorKind::Conflict, message)))
}

/// A lock that no other call may enter until this is dropped.
struct Closed<'l>(&'l Lease);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

/// The statement that begins the transaction of a lock, if not the driver's: it marks it for [`commit`].
pub(crate) fn begins_with(hold: &Hold) -> Option<&'static str> {
    let source = hold.engine().fence_source(hold.lease().key());
    source.and_then(|source| source.dialect.begins_with())
}

/// Commits the transaction of a lock. It must still be the one that keeps the lock; where the lease goes on, the row must
/// name it, and others are kept from the key until the transaction has ended.
pub(crate) async fn commit<DB>(
    hold: &Hold,
    mut transaction: Transaction<'static, DB>,
    kept: Kept,
    pool: PoolId,
) -> Result<(), LockError>
where
    DB: sqlx::Database,
    Transaction<'static, DB>: FenceConnection,
{
    let lease = hold.lease();
    let frees = lease.is_kept_in_transaction();
    if (frees || kept == Kept::ByLease) && !lease.close() {
        if frees {
            // Dropping the transaction rolls it back, which frees the key too.
            lease.end_as_gone();
        }
        let message = "the lock has another hold still, as a task that has inherited it: the commit would free the key beside \
                       it. Nothing was committed: await such tasks in the body";
        return Err(failed(lease, StoreError::new(StoreErrorKind::Other, message)));
    }
    let check = check_of(lease, hold.engine())?;
    let (source, dialect) = (check.source, check.source.dialect);
    let id = kept.id();
    if id.is_none() {
        lease.check()?;
        let [key, lease_id, _] = check.values();
        let sql = dialect.lease_stands(&source.table);
        let stands = source.query(&mut transaction, &sql, [key, lease_id]);
        let stands = stands.await.map_err(|error| {
            if fence::is_old_snapshot(&error) {
                source.pools.saw_an_old_snapshot(pool);
            }
            failed(lease, error)
        })?;
        if stands.is_empty() {
            return Err(refused(lease, hold.engine()).await);
        }
    }
    let committed = fence::commit(dialect, transaction, id.as_ref()).await;
    committed
        .map_err(|error| failed(lease, error))?
        .map_err(|error| {
            // Never taken for a conflict: what the body has committed by itself would be done again.
            let message = "the transaction that keeps the lock was over before its commit: the body ended it, as some \
                           statements of MySQL do, or swallowed an error that ended it. What it did until then may stand: \
                           look at the data before you repeat the call";
            failed(lease, StoreError::new(StoreErrorKind::Other, message).with_source(error))
        })?;
    source.pools.saw_a_lock_end(pool);
    Ok(())
}
