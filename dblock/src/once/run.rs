//! A run as its body sees it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::Key;
use crate::engine::{EngineHandle, Lease};
use crate::store::{RecordEntry, RecordState, RecordVersion};
#[cfg(feature = "sql")]
use crate::{LockError, RunError, once::codec};

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
pub struct Run(pub(super) Arc<Attempt>);

pub(super) struct Attempt {
    pub(super) lease: Lease,
    /// The record that was written when it began.
    pub(super) begun: RecordEntry,
    pub(super) remember: Duration,
    pub(super) max_result: usize,
    /// `complete_in` was called: from then on only the record says how it ended.
    pub(super) completing: AtomicBool,
    /// `leave_in_doubt` was called: an error of the body is no failure.
    pub(super) in_doubt: AtomicBool,
    /// The body has begun.
    pub(super) entered: AtomicBool,
    /// The run around this one.
    pub(super) around: Option<Run>,
}

impl Run {
    /// The key, as it was typed.
    pub fn key(&self) -> &str {
        self.0.lease.key().typed()
    }

    /// The key with the manager's namespace before it: what the store has, and what is told apart from the
    /// keys of other namespaces, such as by a service that is given it.
    pub fn full_key(&self) -> &str {
        self.0.lease.key().as_str()
    }

    /// The number of this attempt, from 1. Attempts that crashed count.
    pub fn attempt(&self) -> u32 {
        self.0.begun.attempts
    }

    /// The fence token of the lease under which it runs, which is in the record too.
    pub fn fence_token(&self) -> i64 {
        self.0.begun.fence_token
    }

    /// Writes the success of this run into your transaction, with its result `value` and the end of its lock.
    /// The commit makes the work, the record and the release durable together; after a rollback none of them
    /// stands. So the work has exactly one effect, whatever crashes.
    ///
    /// Call it last, right before the commit, and return the same value from the body. Begin the transaction
    /// in the body, with [`begin`](crate::begin), before anything is read. From here on the lock lives as
    /// long as the transaction, and only the record says how the run ended: when the commit's answer is lost,
    /// the call of `run_once` looks whether it was written.
    ///
    /// Nobody enters the lock any more from here on, neither a nested call nor a child: they get
    /// [`LockError::Store`] of the kind [`Conflict`](crate::store::StoreErrorKind::Conflict).
    ///
    /// Call it once. When the COMMIT fails with a serialization failure (40001), another transaction of the
    /// same body cannot complete the run any more: return the error, and repeat the call of `run_once`, which
    /// is then the next attempt.
    ///
    /// # Errors
    /// - [`LockError::Run`] with [`RunError::NotStorable`] for a value that is not JSON or is larger than
    ///   [`max_result`](crate::RunOptions::max_result). Nothing was written: the transaction can be rolled
    ///   back, or completed with another value.
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
        let lease = &self.0.lease;
        let json = codec::within(serde_json::to_string(value), self.0.max_result);
        let json = json.map_err(|why| LockError::run(lease.key().to_typed(), RunError::not_storable(why)))?;
        self.0.completing.store(true, Ordering::Release);
        let completion = crate::store::fence::Completion {
            key: lease.key(),
            fence_token: self.fence_token(),
            attempts: self.attempt(),
            json: &json,
            keep: self.0.remember,
        };
        crate::fence::complete(lease, transaction, &completion).await
    }

    /// Says that nobody knows what came of the work, for example because a provider did not answer. If the
    /// body then returns `Err`, that is a crash and no failure: under [`OnCrash::Stop`](crate::OnCrash::Stop)
    /// the run is in doubt. Under the other two the body runs again anyway. If it returns `Ok`, this call
    /// changes nothing.
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

    /// Whether it is a run of this key, or inside one.
    pub(super) fn is_inside(&self, engine: &EngineHandle, key: &Key) -> bool {
        let mut runs = std::iter::successors(Some(self), |run| run.0.around.as_ref());
        runs.any(|run| run.0.lease.is_of(engine, key))
    }

    /// Runs its body, unless the lease has ended by then. From here on the beginning is not taken back.
    pub(super) async fn run<T>(self, body: impl AsyncFnOnce(Self) -> T) -> Option<T> {
        self.0.lease.begun().ok()?;
        self.0.entered.store(true, Ordering::Release);
        let run = self.clone();
        Some(RUNS.scope(self, body(run)).await)
    }

    /// Whether its body has begun.
    pub(super) fn has_entered(&self) -> bool {
        self.0.entered.load(Ordering::Acquire)
    }

    /// The record of this attempt's outcome.
    pub(super) fn outcome(
        &self,
        state: RecordState,
        result: Option<String>,
        error: Option<String>,
    ) -> RecordEntry {
        RecordEntry {
            state,
            result,
            error,
            keep: self.0.remember,
            ..self.0.begun.clone()
        }
    }

    /// The record of this attempt while it is processing, and once it succeeded.
    pub(super) fn versions(&self) -> (RecordVersion, RecordVersion) {
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
