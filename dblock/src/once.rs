//! Running something once: the lock that remembers the outcome.
//!
//! A call reads the record, takes the lock of the key and with it writes "processing", runs the body, and
//! writes the outcome together with the release. `dblock_core::runs` decides what to do about each record;
//! [`change_record`](crate::store::rules::change_record) has the rules of the writes.
//!
//! | ends after | record | the next call |
//! |---|---|---|
//! | the read, or before it enters the body | as it was | runs |
//! | the lock is granted, with "processing", or in the body | processing, and nobody has the lock | `on_crash` decides |
//! | the outcome is written, with the release | succeeded or failed | replays, or runs the next attempt |
//! | `leave_in_doubt` and an error, with `on_crash` "stop" | processing, and nobody has the lock | it is in doubt |
//! | `complete_in`, before the commit | processing: nothing of the transaction stands | `on_crash` decides |
//! | the commit of that transaction | succeeded | replays |
//!
//! Every write names the state, the token and the number of attempts that it expects. So an attempt that was
//! paused beyond its lease finds another version once somebody else has begun, and neither records nor
//! overwrites anything. If nobody has begun since, the record is still ours, even without a lease.

mod call;
mod codec;
mod doubt;
mod options;
mod records;
mod run;

use std::fmt::Display;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use self::codec::{Fingerprint, Remembered};
pub use self::options::RunOptions;
pub use self::records::{Resolution, RunRecord};
pub use self::run::{Run, current_run};

pub(crate) use self::call::OnceCall;
use crate::LockError;
use crate::manager::LockManager;

/// The value of a run, and whether this call ran it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Once<T> {
    /// This call has run the body.
    Ran(T),
    /// An earlier call has run it, and this is its stored result.
    Replayed(T),
}

impl<T> Once<T> {
    /// The value, whoever ran.
    pub fn into_inner(self) -> T {
        let (Self::Ran(value) | Self::Replayed(value)) = self;
        value
    }

    /// Whether this call has run the body.
    pub fn has_run(&self) -> bool {
        matches!(self, Self::Ran(_))
    }
}

/// For a body that returns `Once<T>`: a value that it has made itself.
impl<T> From<T> for Once<T> {
    fn from(value: T) -> Self {
        Self::Ran(value)
    }
}

/// Runs that are remembered. These calls need the feature `run_once`.
impl LockManager {
    /// Runs `body` under the lock on `key`, unless an earlier run of the key succeeded: then it returns the
    /// stored result of that run.
    ///
    /// The outcome is remembered in the table of records, next to the lock table. Only a returned `Err` is a
    /// failure: then the next call runs the body again. A panic, a dropped future, a lost lease and the end
    /// of the process are crashes, and so is an `Err` after [`Run::leave_in_doubt`]: [`OnCrash`](crate::OnCrash) decides
    /// about those. While another call runs the body, this one waits as long as the lock's `wait` says, and
    /// then returns the result of that call. Without `wait` it fails with [`LockError::Busy`].
    ///
    /// A run costs one read more than a plain lock, and no further commit: the mark that the body has begun
    /// is written with the grant, and the outcome with the release. A replay is one read. While the keys of
    /// this manager's runs are all new, even that read is spared; the first replay after that takes the lock
    /// for a moment.
    ///
    /// `docs/run-once.md` in the repository says what each crash leaves behind, and what `run_once` does not
    /// protect from.
    ///
    /// # Errors
    /// - Those of `body`, and those of [`LockBuilder::run`](crate::LockBuilder::run).
    /// - [`LockError::Run`], whose [`RunError`](crate::RunError) says why nothing ran or what is unknown.
    /// - [`LockError::Invalid`] for options that cannot work, for a run of the key inside itself, and for one under
    ///   its own lock while a transaction ends that.
    /// - [`LockError::Store`] with [`StoreErrorKind::Schema`](crate::store::StoreErrorKind::Schema) where the
    ///   table of records is missing.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body, which is a crash, and releases the lock in the background. An
    /// outcome that was sent is still written.
    ///
    /// # Panics
    /// If the body does, which is a crash. Outside of a tokio runtime, or in one without time, also when the
    /// store fails, or the lease ends, while the outcome is written.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager, OnCrash, Once, RunOptions};
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let day = Duration::from_secs(24 * 3600);
    /// let pay = async |_| Ok::<_, LockError>("receipt 7".to_owned());
    /// let first = locks.run_once("pay:42", RunOptions::new(day, OnCrash::Stop), pay).await?;
    /// assert_eq!(first, Once::Ran("receipt 7".to_owned()));
    /// let again = locks.run_once("pay:42", RunOptions::new(day, OnCrash::Stop), pay).await?;
    /// assert_eq!(again, Once::Replayed("receipt 7".to_owned()));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub async fn run_once<T, E, F>(
        &self,
        key: impl AsRef<str>,
        options: RunOptions,
        body: F,
    ) -> Result<Once<T>, E>
    where
        T: Serialize + DeserializeOwned,
        E: From<LockError> + Display,
        F: AsyncFnOnce(Run) -> Result<T, E>,
    {
        let call = OnceCall::new(self, key.as_ref(), options)?;
        let body = async |run| body(run).await.map(Once::Ran);
        call.run(body).await?
    }
}
