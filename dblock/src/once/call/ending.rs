//! The end of a call: writes the outcome of the attempt into the record, and frees the lock.

use std::fmt::Display;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::OnceCall;
use crate::body::{self, Ended, Loss};
use crate::engine::{Hold, InRun, Lease, Permit};
use crate::once::codec::{self, Remembered};
use crate::once::doubt::Attempted;
use crate::once::run::Run;
use crate::runs::OnCrash;
use crate::store::{Record, RecordChange, RecordEntry, RecordState, RecordWrite, WriteLease};
use crate::store::{StoreError, StoreErrorKind};
use crate::{LockError, LostReason, RunError};

/// How long a call tries to write the outcome after the store has failed, or the lease has ended. The body is done,
/// so the outcome is worth some time.
const PERSISTENCE: Duration = Duration::from_secs(15);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// The longest error text that is kept, in bytes.
const LONGEST_ERROR: usize = 1_000;

/// What to do with the record when the body has ended.
enum Outcome {
    Write(RecordEntry),
    /// Read it: the body's transaction may have written it, or the run is in doubt and it stays as it is.
    Look,
    /// The body was stopped, which is a crash.
    Leave,
}

/// What a try to write the outcome has found.
enum Written {
    Yes,
    /// No: the record has another version, this one.
    No(Option<Record>),
}

impl OnceCall<'_> {
    /// The lease ended before the body began, so the release takes the beginning back.
    pub(super) async fn never_entered<T>(&self, hold: Hold) -> Result<T, LockError> {
        let lease = hold.lease().clone();
        let reason = lease.lost_reason().unwrap_or(LostReason::Gone);
        self.leave(hold).await;
        Err(lease.lost(reason))
    }

    /// Writes how the attempt ended. Panics, stopped bodies and errors in doubt leave the record as it is:
    /// they are crashes.
    pub(super) async fn end<V, E>(
        &self,
        hold: Hold,
        run: &Run,
        in_run: InRun,
        ended: Ended<std::thread::Result<Result<V, E>>>,
        mut attempted: Attempted<'_>,
    ) -> Result<Result<V, E>, LockError>
    where
        V: Remembered,
        E: Display,
    {
        let completing = run.0.completing.load(Ordering::Acquire);
        let in_doubt = self.is_left_in_doubt(run);
        let (returned, loss) = match ended {
            Ended::InTime(Ok(returned)) => (Some(returned), None),
            Ended::Late(Ok(returned), loss) => (Some(returned), Some(loss)),
            Ended::Stopped(loss) => (None, Some(loss)),
            Ended::InTime(Err(panic)) | Ended::Late(Err(panic), _) => {
                let _ = body::leave(vec![hold], false).await;
                resume_unwind(panic)
            }
        };
        // Otherwise an outer hold of the same chain, or a child, keeps the lock, even if the lease is lost.
        let alone = hold.lease().close();
        let outcome = match &returned {
            Some(Ok(_)) | None if completing => Outcome::Look,
            Some(Err(_)) if in_doubt => Outcome::Look,
            Some(Ok(value)) => Outcome::Write(succeeded(run, value)),
            Some(Err(error)) => Outcome::Write(failed(run, error)),
            None => Outcome::Leave,
        };
        let written = {
            let asked = pin!(self.record((&hold, alone), run, outcome));
            in_time(&run.0.lease, asked).await
        };
        let begun = run.versions().0;
        attempted.is_recorded = match &written {
            Ok(Written::Yes) => true,
            // Otherwise somebody else has decided about the run.
            Ok(Written::No(Some(record))) => record.version() != begun,
            Ok(Written::No(None)) | Err(_) => false,
        };
        drop(attempted);
        drop(in_run);
        let (_, succeeded) = run.versions();
        // The row was freed together with the record, by our statement or by the body's transaction.
        let freed = match &written {
            Ok(Written::Yes) => alone,
            Ok(Written::No(Some(record))) => {
                record.version() == succeeded && hold.lease().is_kept_in_transaction()
            }
            _ => false,
        };
        if freed && loss.is_none() {
            hold.transaction_over();
        } else {
            // A release that is not confirmed is in the log, and changes nothing about the outcome.
            let _ = body::leave(vec![hold], false).await;
        }
        self.answer(run, completing, written, returned, loss)
    }

    /// Whether an error of the body leaves the run in doubt.
    pub(super) fn is_left_in_doubt(&self, run: &Run) -> bool {
        self.options.policy.on_crash == OnCrash::Stop && run.0.in_doubt.load(Ordering::Acquire)
    }

    /// Decides what the call answers. By then the attempt is over and the hold has ended.
    fn answer<V: Remembered, E>(
        &self,
        run: &Run,
        completing: bool,
        written: Result<Written, LockError>,
        returned: Option<Result<V, E>>,
        loss: Option<Loss>,
    ) -> Result<Result<V, E>, LockError> {
        let (begun, succeeded) = run.versions();
        let over = |loss: Option<Loss>| {
            let (lease, reason) = loss.unwrap_or_else(|| (run.0.lease.clone(), LostReason::Gone));
            Err(lease.lost(reason))
        };
        let forgotten = !completing && self.options.policy.on_crash == OnCrash::CompleteIn;
        match (written, returned) {
            (Ok(Written::Yes), Some(Ok(_))) if forgotten => Err(self.refused(RunError::NotCompleted)),
            (Ok(Written::Yes), Some(returned)) if loss.is_none() || returned.is_ok() => Ok(returned),
            (Ok(Written::No(Some(record))), returned) if record.version() == succeeded => match returned {
                Some(Ok(value)) => Ok(Ok(value)),
                // The answer to the commit was lost, or the body went on after the commit: the record decides.
                _ => self.value(&record, true).map(Ok),
            },
            (Ok(Written::No(Some(record))), Some(Ok(_))) if record.version() == begun && loss.is_none() => {
                Err(self.refused(RunError::NotCommitted))
            }
            (Err(error), Some(Ok(_))) => Err(self.unrecorded(error)),
            (Err(error), None) if completing => Err(self.unrecorded(error)),
            (written, Some(Err(error))) if loss.is_none() => {
                if let Err(unwritten) = written {
                    tracing::warn!(key = %self.name, attempt = run.attempt(), error = %unwritten,
                        "the run failed, and that could not be recorded: it will look like a crash");
                }
                Ok(Err(error))
            }
            _ => over(loss),
        }
    }

    /// Writes the outcome, or reads the record. `alone`: the lock ends with the write.
    async fn record(
        &self,
        (hold, alone): (&Hold, bool),
        run: &Run,
        outcome: Outcome,
    ) -> Result<Written, LockError> {
        match outcome {
            Outcome::Write(entry) => self.write((hold, alone), run, entry).await,
            Outcome::Look => self.look().await,
            Outcome::Leave => Ok(Written::No(None)),
        }
    }

    /// Writes the outcome, and ends the lease with it. It goes on while the store fails, for a bounded time.
    async fn write(
        &self,
        (hold, alone): (&Hold, bool),
        run: &Run,
        outcome: RecordEntry,
    ) -> Result<Written, LockError> {
        let wanted = outcome.version();
        let mut write = RecordWrite::new(self.key.clone(), RecordChange::Replace(run.versions().0, outcome));
        if alone {
            write.lease = WriteLease::Ends(hold.lease().id());
        }
        let mut failing = None;
        loop {
            let written = match self.locks.write_record(Permit::Outcomes, write.clone()).await {
                Ok(true) => return Ok(Written::Yes),
                // An earlier try may have written the outcome after all.
                Ok(false) => self.locks.read_record(&self.key).await,
                Err(error) => Err(error),
            };
            match written {
                Ok(found) if found.as_ref().map(Record::version) == Some(wanted) => return Ok(Written::Yes),
                Ok(found) => return Ok(Written::No(found)),
                Err(error) if is_worth_another_try(&error, &mut failing) => sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the record that the body's transaction has left.
    async fn look(&self) -> Result<Written, LockError> {
        let mut failing = None;
        loop {
            match self.locks.read_record(&self.key).await {
                Err(error) if is_worth_another_try(&error, &mut failing) => sleep(PAUSE).await,
                found => return found.map(Written::No),
            }
        }
    }

    /// The outcome is not known to be recorded.
    fn unrecorded(&self, error: LockError) -> LockError {
        match error {
            LockError::Store { source, .. } => self.refused(RunError::unrecorded(source)),
            other => {
                let source = StoreError::new(StoreErrorKind::Unreachable, other.to_string());
                self.refused(RunError::unrecorded(source))
            }
        }
    }
}

/// The record of an attempt whose body returned `Ok(value)`.
fn succeeded(run: &Run, value: &impl Remembered) -> RecordEntry {
    let (result, error) = match codec::within(value.encode(), run.0.max_result) {
        Ok(json) => (Some(json), None),
        Err(why) => (None, Some(why)),
    };
    run.outcome(RecordState::Succeeded, result, error)
}

/// The record of an attempt whose body returned `Err(error)`.
fn failed(run: &Run, error: &impl Display) -> RecordEntry {
    run.outcome(RecordState::Failed, None, Some(shortened(&error.to_string())))
}

/// Asks the store about an outcome while the lease lives, which waits for its permit, and for a bounded time
/// after that.
async fn in_time(
    lease: &Lease,
    asked: Pin<&mut impl Future<Output = Result<Written, LockError>>>,
) -> Result<Written, LockError> {
    let given_up = async {
        lease.ended().await;
        sleep(PERSISTENCE).await;
    };
    tokio::select! {
        biased;
        answer = asked => answer,
        () = given_up => Err(LockError::store_of(lease.key(), StoreError::new(
            StoreErrorKind::Unreachable,
            format!("the lease has ended, and the outcome had no answer from the database within {PERSISTENCE:?} after that"),
        ))),
    }
}

/// `failing` is when the store first failed.
fn is_worth_another_try(error: &LockError, failing: &mut Option<Instant>) -> bool {
    error.is_retryable() && failing.get_or_insert_with(Instant::now).elapsed() < PERSISTENCE
}

/// An error's text as the table can keep it.
fn shortened(text: &str) -> String {
    let text = text.replace('\0', " ");
    text[..text.floor_char_boundary(LONGEST_ERROR)].to_owned()
}
