//! One call: from the record that it finds to the record that it leaves.

use std::fmt::{self, Display};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::codec::{self, Remembered};
use super::decide::{Decision, decide, decide_inside};
use super::options::{OnCrash, RunOptions};
use super::records::read;
use crate::body::{self, Ended};
use crate::chain::Link;
use crate::engine::{Begin, EngineHandle, Hold, InRun, Lease};
use crate::error::{LockError, LostReason, RunError};
use crate::key::Key;
use crate::manager::LockManager;
use crate::store::clock::{micros, until};
use crate::store::record::{Record, RecordChange, RecordEntry, RecordState, RecordVersion, RecordWrite};
use crate::store::{StoreError, StoreErrorKind};

/// How long an outcome is tried to be written after the store has failed, or the lease has ended. The body is done, so it
/// is worth some time.
const PERSISTENCE: Duration = Duration::from_secs(15);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// How often a call looks anew because a record changed under its lock: late writes of former attempts are few.
const LOOKS: u32 = 5;

/// The longest error text that is kept, in bytes.
const LONGEST_ERROR: usize = 1_000;

tokio::task_local! {
    static RUNS: Run;
}

/// The run whose body the running code is in; `None` outside of one. A spawned task is outside.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use std::time::Duration;
/// use dblock::{LockError, LockManager, OnCrash, RunOptions, current_run};
///
/// let locks = LockManager::connect("memory:").await?;
/// let options = RunOptions::new(Duration::from_secs(60), OnCrash::Retry);
/// let attempt = async |_| Ok::<_, LockError>(current_run().expect("in a run").attempt());
/// assert_eq!(locks.run_once("mail:42", options, attempt).await?.into_inner(), 1);
/// # Ok::<_, LockError>(()) }).unwrap();
/// ```
pub fn current_run() -> Option<Run> {
    RUNS.try_with(Clone::clone).ok()
}

/// An attempt, as its body sees it. Cheap to clone. It does not keep the lock.
#[derive(Clone)]
pub struct Run(Arc<Attempt>);

struct Attempt {
    lease: Lease,
    engine: EngineHandle,
    /// The record that was written when it began.
    begun: RecordEntry,
    remember: Duration,
    max_result: usize,
    /// `complete_in` was called: from then on only the record says how it ended.
    completing: AtomicBool,
    /// `leave_in_doubt` was called: an error of the body is no failure.
    in_doubt: AtomicBool,
    /// The run around this one.
    around: Option<Run>,
}

impl Run {
    /// The key with its namespace prefix.
    pub fn key(&self) -> &str {
        self.0.lease.key().as_str()
    }

    /// Which attempt this is, from 1. Attempts that crashed count.
    pub fn attempt(&self) -> u32 {
        self.0.begun.attempts
    }

    /// The fence token of the lease under which it runs, which is in the record too.
    pub fn fence_token(&self) -> i64 {
        self.0.begun.fence_token
    }

    /// Writes the success of this run into your transaction, with its result `value` and the end of its lock. The commit
    /// makes the work, the record and the release stand together; after a rollback none of them does. So the work has
    /// exactly one effect, whatever crashes.
    ///
    /// Call it last, right before the commit, and return the same value from the body. Begin the transaction in the body,
    /// with [`begin`](crate::begin), before anything is read. From here on the lock lives as long as the transaction, and
    /// only the record says how the run ended: when the commit's answer is lost, the call of `run_once` looks whether it
    /// was written.
    ///
    /// Call it once. When the COMMIT fails with a serialization failure (40001), another transaction of the same body cannot
    /// complete the run any more: return the error, and repeat the call of `run_once`, which is then the next attempt.
    ///
    /// # Errors
    /// - [`LockError::Run`] with [`RunError::NotStorable`] for a value that is not JSON or is larger than
    ///   [`max_result`](RunOptions::max_result). Nothing was written: the transaction can be rolled back, or completed with
    ///   another value.
    /// - Those of [`LockGuard::release_in`](crate::LockGuard::release_in). Roll the transaction back.
    ///
    /// # Cancel safety
    /// The statements run on your transaction. After dropping the future, roll the transaction back.
    ///
    /// ```no_run
    /// # #[cfg(feature = "sqlite")]
    /// # async fn pay(locks: &dblock::LockManager, pool: &sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// use std::time::Duration;
    /// use dblock::{OnCrash, RunOptions};
    ///
    /// let options = RunOptions::new(Duration::from_secs(24 * 3600), OnCrash::CompleteIn);
    /// locks.run_once("pay:42", options, async |run| {
    ///     let mut tx = dblock::begin(pool).await?;
    ///     sqlx::query("UPDATE accounts SET cents = cents - 5 WHERE id = 42").execute(&mut *tx).await?;
    ///     run.complete_in(&mut tx, &"paid").await?;
    ///     tx.commit().await?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>("paid".to_owned())
    /// })
    /// .await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "sql")]
    pub async fn complete_in(
        &self,
        transaction: &mut dyn crate::fence::FenceConnection,
        value: &impl serde::Serialize,
    ) -> Result<(), LockError> {
        let Attempt { lease, engine, .. } = &*self.0;
        let json = codec::within(serde_json::to_string(value), self.0.max_result);
        let json = json.map_err(|why| LockError::Run {
            key: lease.key().clone(),
            reason: RunError::NotStorable { why },
        })?;
        self.0.completing.store(true, Ordering::Release);
        let completion = crate::store::fence::Completion {
            key: lease.key(),
            fence_token: self.fence_token(),
            attempts: self.attempt(),
            json: &json,
            keep: self.0.remember,
        };
        crate::fence::complete(lease, engine, transaction, &completion).await
    }

    /// Says that nobody knows what came of the work, such as after a provider did not answer: an `Err` that the body
    /// returns then is a crash and no failure. It stays in doubt under [`OnCrash::Stop`]. Under the others it runs
    /// again anyway, so there this changes nothing. Nor does it for a body that returns `Ok`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager, OnCrash, Run, RunError, RunOptions};
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let options = RunOptions::new(Duration::from_secs(24 * 3600), OnCrash::Stop);
    /// let pay = async |run: Run| {
    ///     run.leave_in_doubt();
    ///     Err::<(), Box<dyn std::error::Error>>("the provider did not answer".into())
    /// };
    /// assert!(locks.run_once("pay:42", options.clone(), pay).await.is_err());
    /// let again = locks.run_once("pay:42", options, async |_| Ok::<_, LockError>(())).await;
    /// assert!(matches!(again, Err(LockError::Run { reason: RunError::InDoubt { .. }, .. })));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub fn leave_in_doubt(&self) {
        self.0.in_doubt.store(true, Ordering::Release);
    }

    /// The record of this attempt's outcome.
    fn outcome(&self, state: RecordState, result: Option<String>, error: Option<String>) -> RecordEntry {
        RecordEntry {
            state,
            result,
            error,
            keep: self.0.remember,
            ..self.0.begun.clone()
        }
    }

    /// The record of this attempt while it is processing, and once it succeeded.
    fn versions(&self) -> (RecordVersion, RecordVersion) {
        let begun = self.0.begun.version();
        let succeeded = RecordVersion {
            state: RecordState::Succeeded,
            ..begun
        };
        (begun, succeeded)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("key", &self.key())
            .field("attempt", &self.attempt())
            .field("fence_token", &self.fence_token())
            .finish_non_exhaustive()
    }
}

/// A call of `run_once` whose options are valid.
pub(crate) struct OnceCall<'m> {
    locks: &'m LockManager,
    /// Without the namespace.
    name: String,
    key: Key,
    options: RunOptions,
    fingerprint: Option<Uuid>,
}

/// How a call begins.
enum Entered {
    Replay(Record),
    Begun(Hold, Run, InRun),
}

/// The record after an outcome was to be written.
enum Written {
    Yes,
    /// It was another version. The record that is there.
    No(Option<Record>),
}

impl<'m> OnceCall<'m> {
    pub(crate) fn new(locks: &'m LockManager, name: &str, options: RunOptions) -> Result<Self, LockError> {
        let fingerprint = options.check()?;
        let key = locks.key(name)?;
        let runs = std::iter::successors(current_run(), |run| run.0.around.clone());
        let same = |run: &Run| run.0.engine.id() == locks.engine().id() && *run.0.lease.key() == key;
        if runs.into_iter().any(|run| same(&run)) {
            return Err(LockError::invalid(format!(
                "the run {key:?} was called inside its own body, where it can neither run nor have a result"
            )));
        }
        Ok(Self {
            locks,
            name: name.to_owned(),
            key,
            options,
            fingerprint,
        })
    }

    /// Replays, or runs `body`. The inner result is that of the body.
    pub(crate) async fn run<V, E>(
        self,
        body: impl AsyncFnOnce(Run) -> Result<V, E>,
    ) -> Result<Result<V, E>, LockError>
    where
        V: Remembered,
        E: Display,
    {
        match self.enter().await? {
            Entered::Replay(record) => self.value(&record, false).map(Ok),
            Entered::Begun(hold, run, in_run) => {
                let body = RUNS.scope(run.clone(), body(run.clone()));
                let ended = body::inside(std::slice::from_ref(&hold), body).await;
                self.end(hold, &run, in_run, ended).await
            }
        }
    }

    /// Reads the record, unless the key is probably new. Takes the lock, unless the record has the answer, and writes that
    /// the attempt begins.
    async fn enter(&self) -> Result<Entered, LockError> {
        let decide = |found| decide(found, &self.options, self.fingerprint);
        let new_keys = self.locks.new_keys();
        // Inside a chain a lock may be refused where a replay is not.
        let guessed = new_keys.are_expected() && Link::current().is_none();
        let found = if guessed {
            None
        } else {
            let found = self.locks.look_at_record(&self.key).await?;
            new_keys.note(found.is_none());
            found
        };
        let former = found
            .as_ref()
            .filter(|record| record.state == RecordState::Failed && !record.is_forgotten())
            .cloned();
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
        let pauses = former.is_some() && !self.options.backoff.is_zero();
        let begin = first
            .filter(|_| !pauses)
            .map(|first| self.with_the_lock(first, former));
        let acquired = self
            .locks
            .hold_and_begin(&self.name, &self.options.lock, begin)
            .await;
        let mut hold = match acquired {
            Err(busy) if busy.is_busy() => return self.busy(busy).await,
            acquired => acquired?,
        };
        let Some(in_run) = hold.lease().enter_run() else {
            self.leave(hold).await;
            let busy = LockError::Busy {
                key: self.key.clone(),
                holder: None,
                waited: Duration::ZERO,
            };
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
        match self.begin(&hold, first.filter(|_| !guessed)).await {
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

    /// Another call is in a run of the key. The record is read before that is answered: the run may have ended meanwhile.
    async fn busy(&self, busy: LockError) -> Result<Entered, LockError> {
        let found = self.locks.look_at_record(&self.key).await?;
        match decide(found, &self.options, self.fingerprint) {
            Decision::Replay(record) => Ok(Entered::Replay(record)),
            Decision::Refuse(reason) => Err(self.refused(reason)),
            Decision::Processing(_) | Decision::Run { .. } => Err(busy),
        }
    }

    /// Nothing was done under the lock, so it may go to the next caller at once.
    async fn leave(&self, hold: Hold) {
        // A release that is not confirmed is in the log; it does not change the answer.
        let _ = body::leave(vec![hold], true).await;
    }

    /// How the store begins the attempt in the transaction that grants the lock, and takes that back for a caller that is
    /// gone by then. `former` is what failed before.
    fn with_the_lock(&self, (expected, attempt): Next, former: Option<Record>) -> Begin {
        let begun = self.entry(attempt, RecordEntry::OF_THE_LEASE);
        let undo = match former {
            None => RecordChange::Delete(begun.version()),
            Some(failed) => RecordChange::Replace(
                begun.version(),
                RecordEntry {
                    state: failed.state,
                    attempts: failed.attempts,
                    fence_token: RecordEntry::OF_THE_LEASE,
                    fingerprint: failed.fingerprint,
                    result: None,
                    error: failed.error,
                    holder: failed.holder,
                    keep: until(failed.keep_until, failed.now),
                },
            ),
        };
        Begin {
            change: Arc::new(beginning(expected, begun)),
            undo: Arc::new(undo),
        }
    }

    /// Writes that the attempt begins, where the acquire has not: the lock was handed over locally or passed on, another
    /// hold of the chain has it, or the record has changed. `next` is what to write, if that is known already.
    async fn begin(&self, hold: &Hold, mut next: Option<Next>) -> Result<Begun, LockError> {
        // A write whose outcome is unknown.
        let mut sent: Option<Run> = None;
        for _ in 0..LOOKS {
            let (expected, attempt) = if let Some(next) = next.take() {
                next
            } else {
                let found = self.locks.read_record(&self.key).await?;
                let ours = |run: &Run| found.as_ref().map(Record::version) == Some(run.versions().0);
                if let Some(run) = sent.take_if(|run| ours(run)) {
                    return Ok(Begun::Here(run));
                }
                match decide_inside(found, &self.options, self.fingerprint) {
                    Decision::Run { expected, attempt } => (expected, attempt),
                    Decision::Replay(record) => return Ok(Begun::Before(record)),
                    Decision::Refuse(reason) => return Err(self.refused(reason)),
                    Decision::Processing(_) => continue,
                }
            };
            let run = self.attempt(hold, attempt, self.keep(hold).await?);
            let change = beginning(expected, run.0.begun.clone());
            hold.lease().check()?;
            match self
                .locks
                .write_record(RecordWrite::new(self.key.clone(), change))
                .await
            {
                Ok(true) => return Ok(Begun::Here(run)),
                Ok(false) => {}
                Err(error) if error.is_retryable() => sent = Some(run),
                Err(error) => return Err(error),
            }
        }
        Err(LockError::Store {
            key: Some(self.key.clone()),
            waited: Duration::ZERO,
            source: StoreError::new(
                StoreErrorKind::Conflict,
                "the beginning of the run could not be written, because its record kept changing or the store kept failing",
            ),
        })
    }

    /// For how long the outcome is kept: at least until a tick is too old. Fails when it is too old already. It is asked
    /// after the record was read, so a record that is forgotten by then belongs to a tick that is too old.
    async fn keep(&self, hold: &Hold) -> Result<Duration, LockError> {
        let remember = self.options.remember;
        let Some(tick) = self.options.tick else {
            return Ok(remember);
        };
        let Some(row) = self.locks.get(&self.name).await? else {
            return Err(hold.lease().lost(LostReason::Gone));
        };
        // In whole µs, as the store counts. A time before 1970 is old enough.
        let tick = tick.duration_since(SystemTime::UNIX_EPOCH).map_or(0, micros);
        if row.now.saturating_sub(tick) >= micros(remember) {
            let age = until(row.now, tick);
            return Err(self.refused(RunError::TickTooOld { age }));
        }
        let ahead = until(tick, row.now);
        Ok(remember.saturating_add(ahead).min(RunOptions::MAX_REMEMBER))
    }

    fn attempt(&self, hold: &Hold, attempt: u32, keep: Duration) -> Run {
        let lease = hold.lease();
        Run(Arc::new(Attempt {
            begun: self.entry(attempt, lease.fence_token()),
            lease: lease.clone(),
            engine: hold.engine().clone(),
            remember: keep,
            max_result: self.options.max_result,
            completing: AtomicBool::new(false),
            in_doubt: AtomicBool::new(false),
            around: current_run(),
        }))
    }

    /// What the attempt writes as its beginning.
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

    /// Writes how the attempt ended. Panics, stopped bodies and errors in doubt leave the record as it is: they are crashes.
    async fn end<V, E>(
        &self,
        hold: Hold,
        run: &Run,
        in_run: InRun,
        ended: Ended<std::thread::Result<Result<V, E>>>,
    ) -> Result<Result<V, E>, LockError>
    where
        V: Remembered,
        E: Display,
    {
        let completing = run.0.completing.load(Ordering::Acquire);
        let in_doubt = self.options.on_crash == OnCrash::Stop && run.0.in_doubt.load(Ordering::Acquire);
        let (returned, loss) = match ended {
            Ended::InTime(Ok(returned)) => (Some(returned), None),
            Ended::Late(Ok(returned), loss) => (Some(returned), Some(loss)),
            Ended::Stopped(loss) => (None, Some(loss)),
            Ended::InTime(Err(panic)) | Ended::Late(Err(panic), _) => {
                let _ = body::leave(vec![hold], false).await;
                resume_unwind(panic)
            }
        };
        // Otherwise an outer hold of the same chain, or a child, keeps the lock.
        let alone = hold.lease().hold_count() <= 1;
        let written = match &returned {
            // The body's transaction has written it, or nobody has.
            Some(Ok(_)) | None if completing => in_time(&run.0.lease, self.look()).await,
            Some(Err(_)) if in_doubt => in_time(&run.0.lease, self.look()).await,
            Some(Ok(value)) => {
                let (result, error) = match codec::within(value.encode(), run.0.max_result) {
                    Ok(json) => (Some(json), None),
                    Err(why) => (None, Some(why)),
                };
                let outcome = run.outcome(RecordState::Succeeded, result, error);
                in_time(&run.0.lease, self.write((&hold, alone), run, outcome)).await
            }
            Some(Err(error)) => {
                let error = Some(shortened(&error.to_string()));
                let outcome = run.outcome(RecordState::Failed, None, error);
                in_time(&run.0.lease, self.write((&hold, alone), run, outcome)).await
            }
            None => Ok(Written::No(None)),
        };
        drop(in_run);
        let (begun, succeeded) = run.versions();
        // The row was freed together with the record, by our statement or by the body's transaction.
        let freed = match &written {
            Ok(Written::Yes) => alone,
            Ok(Written::No(Some(record))) => {
                record.version() == succeeded && hold.lease().is_kept_in_transaction()
            }
            _ => false,
        };
        if freed && loss.is_none() {
            hold.committed();
        } else {
            // A release that is not confirmed is in the log, and changes nothing about the outcome.
            let _ = body::leave(vec![hold], false).await;
        }
        let over = |loss: Option<body::Loss>| {
            let (lease, reason) = loss.unwrap_or_else(|| (run.0.lease.clone(), LostReason::Gone));
            Err(lease.lost(reason))
        };
        let forgotten = !completing && self.options.on_crash == OnCrash::CompleteIn;
        match (written, returned) {
            (Ok(Written::Yes), Some(Ok(_))) if forgotten => Err(self.refused(RunError::NotCompleted)),
            (Ok(Written::Yes), Some(returned)) if loss.is_none() || returned.is_ok() => Ok(returned),
            (Ok(Written::No(Some(record))), returned) if record.version() == succeeded => match returned {
                Some(Ok(value)) => Ok(Ok(value)),
                // The commit's answer was lost, or the body went on after it: the record decides.
                _ => self.value(&record, true).map(Ok),
            },
            (Ok(Written::No(Some(record))), Some(Ok(_))) if record.version() == begun && loss.is_none() => {
                Err(self.refused(RunError::NotCommitted))
            }
            (Err(error), Some(Ok(_))) => Err(self.unrecorded(error)),
            (Err(error), None) if completing => Err(self.unrecorded(error)),
            (written, Some(Err(error))) if loss.is_none() => {
                if let Err(unwritten) = written {
                    tracing::warn!(key = %self.key, attempt = run.attempt(), error = %unwritten,
                        "the run failed, and that could not be recorded: it will look like a crash");
                }
                Ok(Err(error))
            }
            _ => over(loss),
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
        write.release = alone.then(|| hold.lease().id());
        let mut failing = None;
        loop {
            let written = match self.locks.write_record(write.clone()).await {
                Ok(true) => return Ok(Written::Yes),
                // A former try may have written it after all.
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

    /// Looks at what the body's transaction has left.
    async fn look(&self) -> Result<Written, LockError> {
        let mut failing = None;
        loop {
            match self.locks.read_record(&self.key).await {
                Err(error) if is_worth_another_try(&error, &mut failing) => sleep(PAUSE).await,
                found => return found.map(Written::No),
            }
        }
    }

    /// The result in the record of a run that succeeded.
    fn value<V: Remembered>(&self, record: &Record, ran: bool) -> Result<V, LockError> {
        match &record.result {
            Some(json) => read(&self.key, json, ran),
            None => Err(self.refused(RunError::NotStored {
                why: record.error.clone().unwrap_or_default(),
            })),
        }
    }

    fn refused(&self, reason: RunError) -> LockError {
        LockError::Run {
            key: self.key.clone(),
            reason,
        }
    }

    /// The outcome is not known to be recorded.
    fn unrecorded(&self, error: LockError) -> LockError {
        match error {
            LockError::Store { source, .. } => self.refused(RunError::Unrecorded { source }),
            other => self.refused(RunError::Unrecorded {
                source: StoreError::new(StoreErrorKind::Unreachable, other.to_string()),
            }),
        }
    }
}

/// The version to replace, and the attempt.
type Next = (Option<RecordVersion>, u32);

/// The attempt that began, or the record of the one that succeeded before.
enum Begun {
    Here(Run),
    Before(Record),
}

fn beginning(expected: Option<RecordVersion>, begun: RecordEntry) -> RecordChange {
    match expected {
        None => RecordChange::Insert(begun),
        Some(version) => RecordChange::Replace(version, begun),
    }
}

/// Asks the store about an outcome while the lease lives, which waits for its turn, and for a bounded time after that.
async fn in_time(
    lease: &Lease,
    asked: impl Future<Output = Result<Written, LockError>>,
) -> Result<Written, LockError> {
    let given_up = async {
        lease.ended().await;
        sleep(PERSISTENCE).await;
    };
    tokio::select! {
        biased;
        answer = asked => answer,
        () = given_up => Err(LockError::store(StoreError::new(
            StoreErrorKind::Unreachable,
            format!("the lease has ended, and the outcome had no answer from the database within {PERSISTENCE:?} after that"),
        ))),
    }
}

/// `failing` is when the store has failed first.
fn is_worth_another_try(error: &LockError, failing: &mut Option<Instant>) -> bool {
    error.is_retryable() && failing.get_or_insert_with(Instant::now).elapsed() < PERSISTENCE
}

/// An error's text as the table can keep it.
fn shortened(text: &str) -> String {
    let text = text.replace('\0', " ");
    text[..text.floor_char_boundary(LONGEST_ERROR)].to_owned()
}
