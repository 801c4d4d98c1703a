//! The lease of an owner.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
#[cfg(any(feature = "sql", feature = "run_once"))]
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::env::{Env, Time};
use dblock_core::machine::out::Unconfirmed;
use dblock_core::machine::ownership::Ownership;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::cells::{Cell, Confirm, Confirmed, Machine};
use super::handle::EngineHandle;
use super::shared::Shared;
use crate::Key;
use crate::OnLost;
#[cfg(feature = "run_once")]
use crate::store::RecordChange;
#[cfg(feature = "sql")]
use crate::store::fence::FenceSource;
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason};

/// An ownership as its owner sees it. Cloning is cheap and does not keep the lock. It keeps the engine: nothing that the
/// engine itself owns may have one.
#[derive(Clone)]
pub(crate) struct Lease {
    engine: EngineHandle,
    pub(super) cell: Arc<Cell>,
    pub(super) ownership: Arc<Ownership>,
}

impl Lease {
    pub(super) fn new(engine: EngineHandle, cell: Arc<Cell>, ownership: Arc<Ownership>) -> Self {
        Self {
            engine,
            cell,
            ownership,
        }
    }

    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.engine
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.engine.shared
    }

    pub(crate) fn key(&self) -> &Key {
        &self.ownership.key
    }

    /// As [`EngineHandle::fence_source`].
    #[cfg(feature = "sql")]
    pub(crate) fn fence_source(&self) -> Option<&FenceSource> {
        self.engine.fence_source(self.key())
    }

    /// Whether it is one of this engine's on the key.
    pub(crate) fn is_of(&self, engine: &EngineHandle, key: &Key) -> bool {
        self.engine.id() == engine.id() && self.key() == key
    }

    pub(crate) fn owner(&self) -> Uuid {
        self.ownership.call.owner
    }

    pub(crate) fn fence_token(&self) -> i64 {
        self.ownership.fence_token
    }

    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn id(&self) -> Uuid {
        self.ownership.lease_id
    }

    pub(crate) fn on_lost(&self) -> OnLost {
        self.ownership.call.options.on_lost
    }

    /// Others may have the lock beside the owner.
    pub(crate) fn is_shared(&self) -> bool {
        self.ownership.call.options.limit.is_some()
    }

    /// Refuses what only one who has the lock alone can do.
    pub(crate) fn check_alone(&self) -> Result<(), LockError> {
        if self.is_shared() {
            return Err(LockError::invalid(format!(
                "others may share {:?}, whose row names none of them: tickets, and fence checks or a release in a \
                 transaction, need a lock without `shared` and `limit`",
                self.key().typed()
            )));
        }
        Ok(())
    }

    pub(crate) fn now(&self) -> Time {
        self.engine.now()
    }

    /// Ends the lease for this owner if its deadline has passed, and wakes the body. Returns the reason why it has
    /// ended, if it has. The first reason stays.
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        self.lost_reason_at(self.now())
    }

    fn lost_reason_at(&self, now: Time) -> Option<LostReason> {
        let (reason, first) = self.ownership.end_if_over(now);
        if first && let Some(reason) = reason {
            // The first to see that the deadline has passed tells the others.
            self.shared().report(now).lost(&self.ownership, reason);
            self.cell.tell();
        }
        reason
    }

    /// Fails when the lease has ended.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.check_at(self.now())
    }

    /// As [`check`](Self::check), at a moment that has just been.
    pub(crate) fn check_at(&self, now: Time) -> Result<(), LockError> {
        self.lost_reason_at(now)
            .map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    pub(crate) fn lost(&self, reason: LostReason) -> LockError {
        LockError::lost(self.key().to_typed(), reason, self.fence_token(), self.held_for())
    }

    /// Time left until the local deadline; zero when the lease has ended.
    pub(crate) fn remaining(&self) -> Duration {
        let now = self.now();
        self.ownership
            .deadline()
            .map_or(Duration::ZERO, |deadline| deadline.since(now))
    }

    /// For how long the owner has, or had, the lock.
    pub(crate) fn held_for(&self) -> Duration {
        self.ownership.held_for(self.now())
    }

    /// `hold_min` keeps the row busy after the last hold.
    pub(crate) fn keeps_hold_min(&self) -> bool {
        self.ownership.hold_min_until.is_some()
    }

    /// How many holds the owner has: 0 once its lease has ended.
    pub(crate) fn hold_count(&self) -> u32 {
        match self.lost_reason() {
            None => self.cell.holds(&self.ownership),
            Some(_) => 0,
        }
    }

    /// Keeps other calls of the owner's, which the lock does not keep out, from running the key beside the
    /// caller. `None` while one of them does.
    #[cfg(feature = "run_once")]
    pub(crate) fn enter_run(&self) -> Option<InRun> {
        let others = self.ownership.in_run.swap(true, Ordering::AcqRel);
        (!others).then(|| InRun(Arc::clone(&self.ownership)))
    }

    /// Completes when an operator has revoked the lease.
    pub(crate) async fn revoked(&self) {
        self.cell
            .until(&self.ownership.watchers, || self.ownership.is_revoked())
            .await;
    }

    /// Completes when somebody has noticed that the lease has ended: the engine's timer, at the latest. The future borrows
    /// nothing.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let (cell, ownership) = (Arc::clone(&self.cell), Arc::clone(&self.ownership));
        async move {
            let has_ended = || ownership.deadline().is_none();
            cell.until(&ownership.watchers, has_ended).await;
        }
    }

    /// Ends local hand-over of this lease. With `named` it also waits until the row names the owner.
    pub(crate) async fn pin(&self, named: bool) -> Result<(), LockError> {
        self.check_alone()?;
        if named {
            let (confirm, answer) = confirm(self.now() + self.remaining());
            self.step(|machine, env| machine.pin(env, &self.ownership, Some(confirm)));
            return self.confirmed(answer).await;
        }
        self.step(|machine, env| machine.pin(env, &self.ownership, None));
        self.check()
    }

    /// Gives the lease another ttl, and waits until it has been extended by that.
    pub(crate) async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        let (confirm, answer) = confirm(self.now() + self.remaining());
        self.step(|machine, env| machine.set_ttl(env, &self.ownership, ttl, confirm));
        self.confirmed(answer).await?;
        self.check()?;
        if self.ownership.is_revoked() {
            return Err(self.lost(LostReason::Revoked));
        }
        Ok(())
    }

    /// Registers how a run is taken back that begins now. Fails when the lease has ended.
    #[cfg(feature = "run_once")]
    pub(crate) fn begin(&self, undo: RecordChange) -> Result<(), LockError> {
        let undo = Arc::new(undo);
        self.unless_ended(|machine, env| machine.begin(env, &self.ownership, undo))
    }

    /// The body of the run begins now: that is not taken back any more. Fails when the lease has ended.
    #[cfg(feature = "run_once")]
    pub(crate) fn begun(&self) -> Result<(), LockError> {
        self.unless_ended(|machine, env| machine.begun(env, &self.ownership))
    }

    /// What takes back a run that has begun under this lease, or may have, and whose body has not.
    #[cfg(feature = "run_once")]
    pub(crate) fn undo(&self) -> Option<RecordChange> {
        let undo = self.cell.undo(&self.ownership)?;
        Some(undo.of_lease(self.fence_token()))
    }

    /// Whether the caller has the only hold, also of a lost lease, and is the first to ask. Then no other hold is
    /// added from here on.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn close(&self) -> bool {
        let closed = self.step(|machine, env| machine.close(env, &self.ownership));
        closed.is_some_and(|closed| closed.is_ok())
    }

    /// Holds can be added again after [`close`](Self::close).
    #[cfg(feature = "sql")]
    pub(crate) fn reopen(&self) {
        self.step(|machine, env| machine.reopen(env, &self.ownership));
    }

    /// Another call of this process, with this owner, waits for the key.
    pub(super) fn is_waited_for_by(&self, owner: Uuid) -> bool {
        self.cell.is_waited_for_by(owner)
    }

    /// Calls the machine of the key. `None`: the key has been forgotten.
    pub(super) fn step<R>(&self, does: impl FnOnce(&mut Machine, &mut Env<'_>) -> R) -> Option<R> {
        self.shared().step(&self.cell, does)
    }

    /// Does what is refused once the lease has ended.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    fn unless_ended(
        &self,
        does: impl FnOnce(&mut Machine, &mut Env<'_>) -> Result<(), LostReason>,
    ) -> Result<(), LockError> {
        // A key that has been forgotten has no lease any more.
        let done = self.step(does).unwrap_or(Err(LostReason::Released));
        done.or_else(|reason| {
            self.check()?;
            Err(self.lost(reason))
        })
    }

    /// A transaction of the owner's has freed the row, and keeps it locked until it ends. The lock was
    /// [closed](Self::close) before. Fails when the lease has ended.
    #[cfg(feature = "sql")]
    pub(crate) fn keep_in_transaction(&self) -> Result<(), LockError> {
        self.unless_ended(|machine, env| machine.keep_in_transaction(env, &self.ownership))
    }

    /// A transaction of the owner's keeps the row locked.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn is_kept_in_transaction(&self) -> bool {
        self.cell.is_kept_in_transaction(&self.ownership)
    }

    /// The lock ends with a transaction of the owner's, which keeps the row locked, or ends with a check of the lease.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn ends_with_transaction(&self) -> bool {
        self.transaction_mark() != 0 || self.is_kept_in_transaction()
    }

    /// The mark of a transaction of the owner's that ends with a check of the lease; 0 without one.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn transaction_mark(&self) -> u64 {
        self.ownership.in_transaction.load(Ordering::Acquire)
    }

    #[cfg(feature = "sql")]
    pub(crate) fn set_transaction_mark(&self, mark: u64) {
        self.ownership.in_transaction.store(mark, Ordering::Release);
    }

    /// A fence check, or a record of a later lease, has shown that the lease is gone.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    pub(crate) fn end_as_gone(&self) {
        self.step(|machine, env| machine.handle_gone(env, &self.ownership));
    }

    /// The error of a call on the lock that the store did not confirm, for the reason that it gave, or for
    /// this one.
    pub(crate) fn unconfirmed(&self, error: Option<StoreError>, waited: Duration, why: &str) -> LockError {
        let source = error.unwrap_or_else(|| StoreError::new(StoreErrorKind::Interrupted, why));
        LockError::unconfirmed(self.key().to_typed(), waited, source)
    }

    pub(super) async fn confirmed(&self, answer: Confirmation) -> Result<(), LockError> {
        let since = self.now();
        match answer.await.map(|(answer, _)| answer) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Unconfirmed::Lost(reason))) => {
                // One that shares the lease may have ended before the others.
                let by_time = |own: &LostReason| matches!(own, LostReason::Expired | LostReason::MaxHold);
                Err(self.lost(self.lost_reason().filter(by_time).unwrap_or(reason)))
            }
            Ok(Err(Unconfirmed::NoAnswer(error))) => {
                let waited = self.now().since(since);
                Err(self.unconfirmed(
                    error,
                    waited,
                    "the database has not confirmed it in time; is a transaction still open that called `verify_in` or, on SQLite, \
                     has written?",
                ))
            }
            // No answer will come: the lease was forgotten, or the engine has ended. Whoever asks is inside the
            // lock and has done some work, so it must not read as if nothing was done.
            Err(_) => {
                self.check()?;
                let waited = self.now().since(since);
                Err(self.unconfirmed(
                    None,
                    waited,
                    "the lock manager has ended before the database answered",
                ))
            }
        }
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lease").field(&self.ownership).finish()
    }
}

/// From [`Lease::enter_run`], until it is dropped.
#[cfg(feature = "run_once")]
pub(crate) struct InRun(Arc<Ownership>);

#[cfg(feature = "run_once")]
impl Drop for InRun {
    fn drop(&mut self) {
        self.0.in_run.store(false, Ordering::Release);
    }
}

/// The answer to a [`confirm`].
pub(super) type Confirmation = oneshot::Receiver<Confirmed>;

/// A request to be told when the store has confirmed something, until `deadline`; and the answer.
pub(super) fn confirm(deadline: Time) -> (Confirm, Confirmation) {
    let (to, answer) = oneshot::channel();
    (Confirm { to, deadline }, answer)
}

#[cfg(test)]
mod tests {
    use crate::LockError;
    #[cfg(any(feature = "sql", feature = "run_once"))]
    use crate::engine::Hold;
    use crate::{LockManager, LockOptions};

    /// A driver that has gone drops what it was to answer.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_never_comes_does_not_say_that_nothing_was_done() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let hold = locks
            .hold(&"key".parse().unwrap(), &LockOptions::new())
            .await
            .unwrap();
        let lease = hold.lease();
        let (gone, answer) = super::confirm(lease.now());
        drop(gone);
        let error = lease.confirmed(answer).await.unwrap_err();
        assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
        assert!(!error.is_retryable() && !error.is_store());
    }

    /// It was never inside, so it has lost nothing, and may come again.
    #[cfg(any(feature = "sql", feature = "run_once"))]
    #[tokio::test(start_paused = true)]
    async fn who_finds_a_lock_closed_may_come_again() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let hold = locks
            .hold(&"key".parse().unwrap(), &LockOptions::new())
            .await
            .unwrap();
        let lease = hold.lease();
        assert!(lease.close());
        let entered = [
            Hold::enter_now(lease),
            Hold::enter(lease, lease.remaining()).await,
        ];
        for refused in entered.map(Result::unwrap_err) {
            assert!(refused.is_retryable() && !refused.is_lost(), "{refused:?}");
        }
        lease.check().unwrap();
    }
}
