//! Locks that end with a transaction: the release is written into it, and is still there right before its
//! commit.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Connection as _, Transaction};
use tokio::time::timeout;

#[cfg(feature = "run_once")]
use super::Again;
use super::by_lease::{InTransaction, Mark};
use super::{ask, check_of, failed, verify};
use crate::Key;
use crate::LockOptions;
use crate::engine::{Hold, Lease};
use crate::store::fence::{self, Dialect, FenceConnection, PoolId, TransactionId};
#[cfg(feature = "run_once")]
use crate::store::fence::{Asked, Completion};
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason};

/// How long a statement of ours may take in a transaction. The connection may be dead, and nobody have noticed.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_millis(2500);

/// How long a commit may take. Nobody else of this process gets the key meanwhile.
pub(super) const COMMIT_TIMEOUT: Duration = Duration::from_secs(30);

/// Refuses options that make no sense for a lock that ends with a transaction.
pub(crate) fn check_options(options: &LockOptions) -> Result<(), LockError> {
    if options.hold_min.is_some() {
        return Err(no_hold_min());
    }
    if options.limit.is_some() {
        return Err(LockError::invalid(
            "a shared or limited lock cannot end with a transaction, whose row lock would keep the others out; take \
             the lock with `run` around the transaction",
        ));
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
    let source = hold.lease().fence_source();
    source.is_none_or(|source| !source.dialect.has_one_writer())
}

/// How a lock ends with a transaction of its own.
#[derive(Debug)]
pub(crate) enum Ends {
    /// The transaction has taken the key itself: a rollback frees that too.
    Taken(TransactionId),
    /// It has written the release before the body, or checked the lease of an outer hold.
    AtOnce(TransactionId),
    /// The release is its last statement, unless an outer hold goes on.
    AtTheEnd { outermost: bool },
    /// It does not: the lease goes on, and a check of it is the last statement. So it can be handed over without the
    /// store.
    ByLease(InTransaction),
}

impl Ends {
    /// The mark of the transaction, if it has one.
    pub(crate) fn mark(&self) -> Option<Arc<Mark>> {
        match self {
            Self::ByLease(in_transaction) => Some(in_transaction.mark()),
            _ => None,
        }
    }
}

/// Writes the end of locks of one engine into the transaction, which keeps the keys from here on. After a
/// rollback the engine's own releases free the rows. Returns the transaction's id.
pub(crate) async fn keep(
    holds: &[Hold],
    transaction: &mut dyn FenceConnection,
) -> Result<TransactionId, LockError> {
    // Calls inside of the transaction may enter again when it keeps the keys.
    Ending::of(holds.iter().map(Hold::lease))?
        .write(transaction)
        .await
}

/// As [`keep`], before a body begins, and in bounded time. Nothing was done under a lease of its own, so a store that is
/// down until that runs out is no more than that.
pub(crate) async fn keep_at_once(
    hold: &Hold,
    transaction: &mut dyn FenceConnection,
) -> Result<TransactionId, LockError> {
    // None are left of a lease that was lost.
    let alone = hold.lease().hold_count() <= 1;
    let keeps = keep(std::slice::from_ref(hold), transaction);
    // A row that others keep locked is told first.
    let limit = STATEMENT_TIMEOUT * 6 / 5;
    let kept = hold.lease().engine().within(Some(limit), keeps).await;
    let kept = kept.unwrap_or_else(|| Err(not_answered(hold.lease().key())));
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

/// As [`keep`], after the body of a transaction.
pub(crate) async fn keep_at_the_end<DB>(
    hold: &Hold,
    outermost: bool,
    transaction: &mut Transaction<'static, DB>,
) -> Result<TransactionId, LockError>
where
    DB: sqlx::Database,
    Transaction<'static, DB>: FenceConnection,
{
    if outermost && hold.lease().hold_count() > 1 {
        return Err(other_hold(hold.lease()));
    }
    let kept = timeout(COMMIT_TIMEOUT, keep(std::slice::from_ref(hold), transaction)).await;
    if !transaction.is_in_transaction() {
        return Err(failed(hold.lease(), over()));
    }
    kept.unwrap_or_else(|_| Err(failed(hold.lease(), commit_unanswered(COMMIT_TIMEOUT))))
}

/// Leases that end with a transaction, and others, whose locks go on with another hold or end with what keeps them
/// already. One step decides which it is, so nobody enters a lock that ends.
struct Ending<'l> {
    closed: Vec<Closed<'l>>,
    others: Vec<&'l Lease>,
}

impl<'l> Ending<'l> {
    fn of(leases: impl Iterator<Item = &'l Lease> + Clone) -> Result<Self, LockError> {
        if leases.clone().any(Lease::keeps_hold_min) {
            return Err(no_hold_min());
        }
        leases.clone().try_for_each(Lease::check_alone)?;
        let (mut closed, mut others) = (Vec::new(), Vec::new());
        for lease in leases {
            if !lease.is_kept_in_transaction() && lease.close() {
                closed.push(Closed(lease));
            } else {
                others.push(lease);
            }
        }
        Ok(Self { closed, others })
    }

    /// Writes the end of those that are closed, which the transaction keeps from here on, and checks the others.
    /// Returns the transaction's id.
    async fn write(&self, transaction: &mut dyn FenceConnection) -> Result<TransactionId, LockError> {
        let mut id = verify(self.others.iter().copied(), transaction).await?;
        let leases = self.closed.iter().map(|closed| closed.0).collect();
        let released = |lease: &Lease, transaction| {
            id = transaction;
            lease.keep_in_transaction()
        };
        ask(leases, transaction, Dialect::release, released).await?;
        Ok(id)
    }
}

/// Writes the success of an attempt into the transaction, together with the end of its lock.
#[cfg(feature = "run_once")]
pub(crate) async fn complete(
    lease: &Lease,
    transaction: &mut dyn FenceConnection,
    completion: &Completion<'_>,
) -> Result<(), LockError> {
    let ending = Ending::of(std::iter::once(lease))?;
    let source = check_of(lease)?.source;
    let mut again = Again::new(lease.engine());
    // The record first: while others keep that locked, the lease goes on.
    loop {
        let written = completion.write(transaction, source).await;
        match written.map_err(|error| failed(lease, error))? {
            Asked::Found(()) => break,
            Asked::Skipped => {
                again.after_a_pause(lease.key()).await?;
                lease.check()?;
            }
            Asked::Gone => {
                verify([lease], transaction).await?;
                return Err(begin_anew(
                    lease.key(),
                    "the transaction does not see the record of this attempt: its snapshot is older than the attempt; \
                     roll it back and begin it in the body, before anything is read",
                ));
            }
        }
    }
    ending.write(transaction).await?;
    // What would enter the lock from here on would stay when the transaction ends it.
    ending.closed.into_iter().for_each(std::mem::forget);
    Ok(())
}

/// A lock that no other call may enter until this is dropped.
struct Closed<'l>(&'l Lease);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.reopen();
    }
}

/// The statement that marks the transaction of a lock for [`commit`], if it needs that.
pub(crate) fn marks_with(hold: &Hold) -> Option<&'static str> {
    let source = hold.lease().fence_source();
    source.and_then(|source| source.dialect.marks_with())
}

/// Commits the transaction of a lock: it must still be the one that keeps it. `id`: as [`keep`] or the take said.
pub(crate) async fn commit<DB>(
    hold: &Hold,
    transaction: Transaction<'static, DB>,
    id: &TransactionId,
    pool: PoolId,
) -> Result<(), LockError>
where
    DB: sqlx::Database,
    Transaction<'static, DB>: FenceConnection,
{
    let lease = hold.lease();
    if !lease.is_kept_in_transaction() {
        // An outer hold goes on, whose lease was checked in this transaction.
        lease.check()?;
    } else if !lease.close() {
        // Dropping the transaction rolls it back, which frees the key too.
        lease.end_as_gone();
        return Err(other_hold(lease));
    }
    if !transaction.is_in_transaction() {
        return Err(failed(lease, over()));
    }
    let source = check_of(lease)?.source;
    let committed = timeout(COMMIT_TIMEOUT, fence::commit(source.dialect, transaction, id)).await;
    committed
        .unwrap_or_else(|_| Err(commit_unanswered(COMMIT_TIMEOUT)))
        .map_err(|error| failed(lease, error))?
        .map_err(|error| failed(lease, over().with_source(error)))?;
    source.pools.saw_a_lock_end(pool);
    Ok(())
}

pub(super) fn commit_unanswered(limit: Duration) -> StoreError {
    let message = format!("the database has not answered within {limit:?}");
    fence::of_commit(StoreError::new(StoreErrorKind::Interrupted, message))
}

/// Nothing stands of the transaction, which must end.
pub(crate) fn begin_anew(key: &Key, message: &str) -> LockError {
    LockError::store_of(key, StoreError::new(StoreErrorKind::Conflict, message))
}

pub(crate) fn not_answered(key: &Key) -> LockError {
    begin_anew(
        key,
        "the database has not answered in time: roll the transaction back",
    )
}

/// The commit would end the lock beside another hold, or the hold would outlive the work that it was for.
pub(super) fn other_hold(lease: &Lease) -> LockError {
    let message = "the lock has another hold still, as a task that has inherited it: the commit would free the key beside \
                   it. Nothing was committed: await such tasks in the body";
    failed(lease, StoreError::new(StoreErrorKind::Other, message))
}

/// Never taken for a conflict: what the body has committed by itself would be done again.
pub(super) fn over() -> StoreError {
    let message = "the transaction that keeps the lock was over before its commit: the body ended it, as some \
                   statements of MySQL do, or swallowed an error that ended it. What it did until then may stand: \
                   look at the data before you repeat the call";
    StoreError::new(StoreErrorKind::Other, message)
}
