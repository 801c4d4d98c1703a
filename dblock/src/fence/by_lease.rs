//! Locks that go on as a lease beside their transaction: a check of the lease is its last statement before the commit.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::{Connection as _, Transaction};
use tokio::time::timeout;

use super::keep::{COMMIT_TIMEOUT, STATEMENT_TIMEOUT, commit_unanswered, other_hold, over};
use super::{check_of, failed, refused};
use crate::LockError;
use crate::LockOptions;
use crate::engine::{Hold, Lease};
use crate::store::fence::{self, FenceConnection, FenceSource, PoolId};
use crate::store::{StoreError, StoreErrorKind};

/// A lease whose transaction ends with a check of it. Meanwhile it is shared with no other task, and in no other
/// transaction.
#[derive(Debug)]
pub(crate) struct InTransaction {
    lease: Lease,
    mark: Arc<Mark>,
}

impl InTransaction {
    fn new(lease: Lease) -> Self {
        let mark = Arc::new(Mark::new());
        lease.set_transaction_mark(mark.0);
        Self { lease, mark }
    }

    pub(super) fn mark(&self) -> Arc<Mark> {
        Arc::clone(&self.mark)
    }

    /// The statement that begins the transaction.
    pub(crate) fn begins(&self) -> Option<String> {
        let source = self.lease.fence_source()?;
        Some(source.dialect.by_lease(source)?.begins(self.mark.0))
    }
}

impl Drop for InTransaction {
    fn drop(&mut self) {
        self.lease.set_transaction_mark(0);
    }
}

/// A number that tells such a transaction from the others of this process that are open.
#[derive(Debug)]
pub(crate) struct Mark(u64);

/// Those in use. They are as small as they can be, because each is a statement of its own in the statistics of the
/// server.
static MARKS: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

impl Mark {
    fn all() -> MutexGuard<'static, BTreeSet<u64>> {
        MARKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new() -> Self {
        let mut marks = Self::all();
        let mut mark = 1;
        while !marks.insert(mark) {
            mark += 1;
        }
        Self(mark)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        Self::all().remove(&self.0);
    }
}

/// The lease of a call that has just acquired it, if it may go on: where the check is no surprise. The pool is known to
/// be of the lock's database, and a statement of its transactions sees what others wrote since they began.
pub(crate) fn by_lease(hold: &Hold, options: &LockOptions, pool: PoolId) -> Option<InTransaction> {
    let lease = hold.lease();
    let source = lease.fence_source()?;
    let may = source.pools.may_check_last(pool)
        && source.dialect.by_lease(source).is_some()
        && options.renew
        && lease.hold_count() == 1
        && lease.lost_reason().is_none()
        && !lease.is_kept_in_transaction();
    may.then(|| InTransaction::new(lease.clone()))
}

/// Commits a transaction whose lock goes on as a lease, unless that is over. The check keeps others from the key until
/// the transaction has ended.
pub(crate) async fn commit_by_lease<DB>(
    hold: &Hold,
    mut transaction: Transaction<'static, DB>,
    pool: PoolId,
) -> Result<(), LockError>
where
    DB: sqlx::Database,
    Transaction<'static, DB>: FenceConnection,
{
    let lease = hold.lease();
    lease.check()?;
    if !lease.close() {
        lease.check()?;
        return Err(other_hold(lease));
    }
    let check = check_of(lease)?;
    let (source, dialect) = (check.source, check.source.dialect);
    let Some(by_lease) = dialect.by_lease(source) else {
        return Err(refused(lease).await);
    };
    if !transaction.is_in_transaction() {
        return Err(failed(lease, over()));
    }
    let own = lease.transaction_mark().to_string();
    let [key, lease_id, _] = check.values();
    let mark = source.query(&mut transaction, &by_lease.check, [key, lease_id]);
    let checked = timeout(STATEMENT_TIMEOUT, mark).await;
    // A body may have ended the transaction: nobody knows.
    let refusal = match checked.map_err(|_| failed(lease, commit_unanswered(STATEMENT_TIMEOUT)))? {
        Ok(marks) => match marks.first() {
            Some(mark) if *mark == own => {
                let committed = timeout(COMMIT_TIMEOUT, fence::commit_checked(dialect, transaction)).await;
                let committed = committed.unwrap_or_else(|_| Err(commit_unanswered(COMMIT_TIMEOUT)));
                return committed.map_err(|error| failed(lease, error));
            }
            Some(_) => return Err(failed(lease, over())),
            None => match refused(lease).await {
                LockError::Store { source: error, .. } => failed(lease, must_lock_first(error, source, pool)),
                lost => lost,
            },
        },
        Err(error) => failed(lease, of_check(error, source, pool)),
    };
    // Where the body has ended the transaction, its work stands.
    let mark = source.query(&mut transaction, by_lease.mark, []);
    match timeout(STATEMENT_TIMEOUT, mark).await {
        Ok(Ok(marks)) if refusal.is_retryable() && marks.first() != Some(&own) => Err(failed(lease, over())),
        _ => Err(refusal),
    }
}

/// The check before a commit has failed, and nothing was committed.
fn of_check(error: StoreError, source: &FenceSource, pool: PoolId) -> StoreError {
    if matches!(error.kind(), StoreErrorKind::Refused | StoreErrorKind::Schema) {
        return must_lock_first(error, source, pool);
    }
    if fence::is_old_snapshot(&error) {
        source.pools.must_lock_first(pool);
    }
    fence::of_commit(error)
}

/// A body may have changed what its transaction may do or sees: then the next one locks the row before the body.
fn must_lock_first(error: StoreError, source: &FenceSource, pool: PoolId) -> StoreError {
    source.pools.must_lock_first(pool);
    let message = format!(
        "the lock could not be checked before the commit; next time its row is locked first: {error}"
    );
    StoreError::new(StoreErrorKind::Conflict, message).with_source(error)
}
