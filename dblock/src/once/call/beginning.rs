//! How a call begins: with a record that has the answer, or with an attempt under the lock, of which the
//! record says so.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::OnceCall;
use crate::body;
use crate::chain::Link;
use crate::engine::{Begin, Hold, InRun, Permit};
use crate::once::options::RunOptions;
use crate::once::run::{Attempt, Run, current_run};
use crate::runs::{Decision, before, beginning, decide, decide_inside, is_later, taken_back_to, undo};
use crate::store::clock::Timestamp;
use crate::store::{Record, RecordEntry, RecordState, RecordVersion, RecordWrite};
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason, RunError};

/// The first pause when a row is locked. It doubles.
const ROW_PAUSE: Duration = Duration::from_millis(5);

/// How often a call looks anew because a record changed under its lock: late writes of former attempts are
/// few.
const LOOKS: u32 = 5;

/// How a call begins.
pub(super) enum Entered {
    Replay(Record),
    Begun(Hold, Run, InRun),
}

/// The version to replace, and the attempt.
type Next = (Option<RecordVersion>, u32);

/// The attempt that began, or the record of the one that succeeded before.
enum Begun {
    Here(Run),
    Before(Record),
}

impl OnceCall<'_> {
    /// Reads the record, unless the key is probably new. Takes the lock, unless the record has the answer,
    /// and writes that the attempt begins.
    pub(super) async fn enter(&self) -> Result<Entered, LockError> {
        let decide = |found| decide(found, &self.options.policy, self.fingerprint);
        let new_keys = self.locks.new_keys();
        // Inside a chain a lock may be refused where a replay is not.
        let guessed = new_keys.are_expected() && Link::current().is_none();
        let found = if guessed {
            None
        } else {
            let found = self.record_in_time().await?;
            new_keys.note(found.is_none());
            found
        };
        let former = taken_back_to(found.as_ref());
        let first = match decide(found) {
            Decision::Replay(record) => return Ok(Entered::Replay(record)),
            Decision::Refuse(reason) => return Err(self.refused(reason)),
            // It may have ended by the time that the lock is ours.
            Decision::Processing(_) => None,
            // It begins after another look under the lock, at the store's clock too.
            Decision::Run { .. } if self.options.tick.is_some() => None,
            Decision::Run { expected, attempt } => Some((expected, attempt)),
        };
        // Taking the beginning back would begin the pause after the former failure anew.
        let pauses = former.is_some() && !self.options.policy.backoff.is_zero();
        let begin = first
            .filter(|_| !pauses)
            .map(|first| Box::new(self.with_the_lock(first, former.clone())));
        let acquire = self
            .locks
            .hold_and_begin(&self.key, &self.options.lock, self.began, begin);
        let acquired = tokio::select! {
            biased;
            acquired = acquire => acquired,
            known = self.known_meanwhile() => return known,
        };
        let hold = match acquired {
            Err(busy) if busy.is_busy() => return self.busy(busy).await,
            acquired => acquired?,
        };
        if hold.lease().ends_with_transaction() {
            self.leave(hold).await;
            return Err(self.kept());
        }
        let Some(in_run) = hold.lease().enter_run() else {
            self.leave(hold).await;
            let busy = LockError::busy(self.key.to_typed(), None, Duration::ZERO);
            return self.busy(busy).await;
        };
        if let Some((_, attempt)) = first
            && hold.lease().lost_reason().is_none()
            && hold.has_begun()
        {
            let run = self.attempt(&hold, attempt, self.options.remember);
            return Ok(Entered::Begun(hold, run, in_run));
        }
        if guessed {
            new_keys.note(false);
        }
        // Rare, and large: each future around it would store it once more.
        let begins = Box::pin(self.begin(&hold, first.filter(|_| !guessed), former));
        match self.under(hold.lease(), begins).await {
            Ok(Begun::Here(run)) => Ok(Entered::Begun(hold, run, in_run)),
            Ok(Begun::Before(record)) => {
                self.leave(hold).await;
                Ok(Entered::Replay(record))
            }
            Err(error) => {
                self.leave(hold).await;
                Err(error)
            }
        }
    }

    /// The run has a record of its own connection's, which needs the lock's row.
    fn kept(&self) -> LockError {
        LockError::invalid(format!(
            "the run {:?} was called under its own lock, which ends with a transaction that is still open: that keeps the \
             lock's row, so no beginning can be recorded; call it before that transaction or after its commit, do the \
             work in the transaction itself, or give the run another key",
            self.name
        ))
    }

    /// Another call is in a run of the key. The record is read before that is answered: the run may have
    /// ended meanwhile.
    async fn busy(&self, busy: LockError) -> Result<Entered, LockError> {
        if self.left().is_some_and(|left| left.is_zero()) {
            return Err(busy);
        }
        match decide(
            self.record_in_time().await?,
            &self.options.policy,
            self.fingerprint,
        ) {
            Decision::Replay(record) => Ok(Entered::Replay(record)),
            Decision::Refuse(reason) => Err(self.refused(reason)),
            Decision::Processing(_) | Decision::Run { .. } => Err(busy),
        }
    }

    /// Nothing was done under the lock, so it may go to the next caller at once.
    pub(super) async fn leave(&self, hold: Hold) {
        // A release that is not confirmed is in the log; it does not change the answer.
        let _ = body::leave(vec![hold], true).await;
    }

    /// How the store begins the attempt in the transaction that grants the lock, and takes that back for a
    /// caller that is gone by then. `former` is what failed before.
    fn with_the_lock(&self, (expected, attempt): Next, former: Option<Record>) -> Begin {
        let begun = self.entry(attempt, RecordEntry::OF_THE_LEASE);
        let undo = undo(begun.version(), former);
        Begin {
            change: Arc::new(beginning(expected, begun)),
            undo: Arc::new(undo),
        }
    }

    /// Writes that the attempt begins, where the acquire has not: the lock was handed over locally or passed
    /// on, another hold of the chain has it, or the record has changed. `next` is what to write, if that is
    /// known already, in the place of `former`.
    ///
    /// The engine knows first how that is taken back, and the write needs the live lease: so whoever drops
    /// this leaves no run that looks begun.
    async fn begin(
        &self,
        hold: &Hold,
        mut next: Option<Next>,
        mut former: Option<Record>,
    ) -> Result<Begun, LockError> {
        let lease = hold.lease();
        // A write whose outcome is unknown.
        let mut sent: Option<Run> = None;
        let (mut looks, mut pause) = (0, ROW_PAUSE);
        while looks < LOOKS {
            looks += 1;
            let (expected, attempt) = if let Some(next) = next.take() {
                next
            } else {
                let found = self.locks.engine().record(&self.key).await?;
                // What was read after the lease had ended may be an attempt that runs elsewhere.
                lease.check()?;
                let ours = |run: &Run| found.as_ref().map(Record::version) == Some(run.versions().0);
                if let Some(run) = sent.take_if(|run| ours(run)) {
                    return Ok(Begun::Here(run));
                }
                let begun = lease
                    .undo()
                    .filter(|undo| undo.expected() == found.as_ref().map(Record::version));
                let (found, begun) = match (found, begun) {
                    // Under an outer hold a call has begun this, and its body has not.
                    (Some(found), Some(undo)) => (before(&found, undo), Some(found.version())),
                    (found, _) => (found, None),
                };
                if found
                    .as_ref()
                    .is_some_and(|found| is_later(found, lease.fence_token()))
                {
                    lease.end_as_gone();
                    lease.check()?;
                }
                former = taken_back_to(found.as_ref());
                match decide_inside(found, &self.options.policy, self.fingerprint) {
                    Decision::Run { expected, attempt } => (begun.or(expected), attempt),
                    Decision::Replay(record) => return Ok(Begun::Before(record)),
                    Decision::Refuse(reason) => return Err(self.refused(reason)),
                    Decision::Processing(_) => continue,
                }
            };
            let run = self.attempt(hold, attempt, self.keep(hold).await?);
            let begun = run.0.begun.clone();
            lease.begin(undo(begun.version(), former.take()))?;
            let write = RecordWrite::under(self.key.clone(), beginning(expected, begun), lease.id());
            match self.locks.write_record(Permit::Records, write).await {
                Ok(true) => return Ok(Begun::Here(run)),
                Ok(false) => lease.check()?,
                // A row is locked, for a moment or by a transaction that waits for this call.
                Err(LockError::Store { source, .. }) if source.kind() == StoreErrorKind::Conflict => {
                    self.pause_for_row(&mut pause).await?;
                    looks -= 1;
                }
                Err(error) if error.is_retryable() => sent = Some(run),
                Err(error) => return Err(error),
            }
        }
        let message = "the beginning of the run could not be written, because its record kept changing or the store kept \
                       failing; call it again";
        let source = StoreError::new(StoreErrorKind::Conflict, message);
        Err(LockError::store_of(&self.key, source))
    }

    /// For how long the outcome is kept: at least until a tick is too old. Fails when it is too old already.
    /// It is asked after the record was read, so a record that is forgotten by then belongs to a tick that is
    /// too old.
    async fn keep(&self, hold: &Hold) -> Result<Duration, LockError> {
        let remember = self.options.remember;
        let Some(tick) = self.options.tick else {
            return Ok(remember);
        };
        let Some(row) = self.locks.engine().row(&self.key).await? else {
            return Err(hold.lease().lost(LostReason::Gone));
        };
        // In whole µs, as the store counts. A time before 1970 is old enough.
        let tick = Timestamp::from(tick);
        if tick + remember <= row.now {
            return Err(self.refused(RunError::tick_too_old(row.now.since(tick))));
        }
        let ahead = tick.since(row.now);
        Ok(remember.saturating_add(ahead).min(RunOptions::MAX_REMEMBER))
    }

    fn attempt(&self, hold: &Hold, attempt: u32, keep: Duration) -> Run {
        let lease = hold.lease();
        Run(Arc::new(Attempt {
            begun: self.entry(attempt, lease.fence_token()),
            lease: lease.clone(),
            remember: keep,
            max_result: self.options.max_result,
            completing: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            entered: AtomicBool::new(false),
            around: current_run(),
        }))
    }

    /// The record that the attempt writes as its beginning.
    fn entry(&self, attempt: u32, fence_token: i64) -> RecordEntry {
        RecordEntry {
            state: RecordState::Processing,
            attempts: attempt,
            fence_token,
            fingerprint: self.fingerprint,
            result: None,
            error: None,
            holder: self.locks.holder(self.options.lock.function).to_string(),
            keep: self.options.remember,
        }
    }
}
