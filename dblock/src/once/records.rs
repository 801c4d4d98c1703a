//! Looking at records, and deciding about them by hand.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::codec::{self, Remembered};
use super::options::{RunOptions, check_remember};
use crate::body;
use crate::engine::{Lease, Turn};
use crate::error::{LockError, RunError};
use crate::key::Key;
use crate::manager::LockManager;
use crate::options::LockOptions;
use crate::store::record::{Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordWrite};
use crate::store::{Store, StoreError, record};

/// How long the store may take for one call about a record.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome that [`LockManager::resolve`] gives a run that is in doubt.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Resolution {
    /// It had no effect: the next call runs it, as its first attempt.
    RunAgain,
    /// It had its effect. From [`Resolution::succeeded`].
    #[non_exhaustive]
    Succeeded {
        /// Its result as JSON.
        json: String,
        /// For how long that is remembered.
        remember: Duration,
    },
}

impl Resolution {
    /// It had its effect, and its result is `value`, which is remembered for `remember` from now on.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a value that cannot be kept, and for a `remember` that [`RunOptions::new`]
    /// refuses.
    pub fn succeeded(value: &impl Serialize, remember: Duration) -> Result<Self, LockError> {
        check_remember(remember)?;
        let json = codec::within(serde_json::to_string(value), RunOptions::MAX_RESULT);
        let json = json.map_err(|why| LockError::invalid(format!("the result cannot be kept: {why}")))?;
        Ok(Self::Succeeded { json, remember })
    }
}

/// A record with its result, from [`LockManager::record`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunRecord<T> {
    /// The record as it is in the table.
    pub record: Record,
    /// The result of a run that succeeded. `None` for any other run, and for a result that could not be kept.
    pub result: Option<T>,
}

/// The records of `run_once`. These calls need the feature `run_once`.
impl LockManager {
    /// Reads the record of the run of `key`; `None` if there is none.
    ///
    /// # Errors
    /// [`LockError::Run`] with [`RunError::Undecodable`] for a result of another type, [`LockError::Invalid`]
    /// for a bad key, [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager, OnCrash, RunOptions, store::RecordState};
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// assert!(locks.record::<u64>("pay:42").await?.is_none());
    /// let options = RunOptions::new(Duration::from_secs(3600), OnCrash::Stop);
    /// locks.run_once("pay:42", options, async |_| Ok::<_, LockError>(7_u64)).await?;
    /// let found = locks.record::<u64>("pay:42").await?.expect("it ran");
    /// assert_eq!((found.record.state, found.result), (RecordState::Succeeded, Some(7)));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub async fn record<T: Remembered>(
        &self,
        key: impl AsRef<str>,
    ) -> Result<Option<RunRecord<T>>, LockError> {
        let key = self.key(key.as_ref())?;
        let Some(record) = self
            .look_at_record(&key)
            .await?
            .filter(|record| !record.is_forgotten())
        else {
            return Ok(None);
        };
        let json = record.result.as_deref();
        let result = json.map(|json| read(&key, json, false)).transpose()?;
        Ok(Some(RunRecord { record, result }))
    }

    /// Lists the records that `filter` selects, ordered by key, without decoding their results. Only keys of
    /// this manager's namespace are included.
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, or keeps no records, [`LockError::Shutdown`]
    /// after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn records(&self, mut filter: RecordFilter) -> Result<Vec<Record>, LockError> {
        if let Some(namespace) = self.namespace() {
            filter.prefix = format!("{namespace}:{}", filter.prefix);
        }
        self.on_records(Turn::Looks, |store| async move {
            record::kept_by(&*store)?.list(&filter).await
        })
        .await
    }

    /// Deletes the record of a run that succeeded or failed, so that the next call runs it again as its first
    /// attempt. Returns whether there was one.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a bad key, and for a record that is processing: [`resolve`](Self::resolve)
    /// decides about those. [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`]
    /// after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    pub async fn forget(&self, key: impl AsRef<str>) -> Result<bool, LockError> {
        let key = self.key(key.as_ref())?;
        let Some(record) = self.look_at_record(&key).await? else {
            return Ok(false);
        };
        if record.state == RecordState::Processing {
            return Err(LockError::invalid(format!(
                "the run {key:?} is processing, or crashed: it cannot be forgotten; wait for its end, or decide about it \
                 with `LockManager::resolve`"
            )));
        }
        tracing::warn!(%key, state = record.state.as_str(), "forgetting a run");
        self.write_record(RecordWrite::new(key, RecordChange::Delete(record.version())))
            .await
    }

    /// Decides about a run that is in doubt, or that has failed. It takes the lock of the key, so no attempt
    /// is running meanwhile. Returns whether there was such a record. A record that succeeded stays as it is.
    ///
    /// # Errors
    /// [`LockError::Busy`] while an attempt is running, [`LockError::Invalid`] for a bad key,
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Lost`] when the lease ended
    /// before anything was decided, [`LockError::Shutdown`] after [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    ///
    /// ```no_run
    /// # async fn decide(locks: &dblock::LockManager) -> Result<(), dblock::LockError> {
    /// use dblock::{Resolution, store::{RecordFilter, RecordState}};
    ///
    /// for record in locks.records(RecordFilter::new().state(RecordState::Processing)).await? {
    ///     println!("{} was begun by {}", record.key, record.holder);
    /// }
    /// // The provider says that it has never heard of this payment.
    /// locks.resolve("pay:42", Resolution::RunAgain).await?;
    /// # Ok(()) }
    /// ```
    pub async fn resolve(&self, key: impl AsRef<str>, resolution: Resolution) -> Result<bool, LockError> {
        let text = key.as_ref();
        let key = self.key(text)?;
        let hold = self.hold(text, &LockOptions::new()).await?;
        let resolved = self.resolve_inside(&key, hold.lease(), resolution).await;
        // A release that is not confirmed is in the log, and changes nothing about the record.
        let _ = body::leave(vec![hold], true).await;
        resolved
    }

    async fn resolve_inside(
        &self,
        key: &Key,
        lease: &Lease,
        resolution: Resolution,
    ) -> Result<bool, LockError> {
        let found = self.read_record(key).await?;
        // After a pause that was longer than the lease, what was read may be the record of an attempt that
        // runs.
        lease.check()?;
        let Some(record) = found.filter(|record| record.state != RecordState::Succeeded) else {
            return Ok(false);
        };
        tracing::warn!(%key, state = record.state.as_str(), "deciding about a run by hand");
        let expected = record.version();
        let change = match resolution {
            Resolution::RunAgain => RecordChange::Delete(expected),
            Resolution::Succeeded { json, remember } => RecordChange::Replace(
                expected,
                RecordEntry {
                    state: RecordState::Succeeded,
                    attempts: record.attempts,
                    fence_token: record.fence_token,
                    fingerprint: record.fingerprint,
                    result: Some(json),
                    error: None,
                    holder: record.holder,
                    keep: remember,
                },
            ),
        };
        self.write_record(RecordWrite::new(key.clone(), change)).await
    }

    /// Reads a record without its lock.
    pub(super) async fn look_at_record(&self, key: &Key) -> Result<Option<Record>, LockError> {
        self.looks().at(self.engine(), key, TIMEOUT).await
    }

    /// Reads a record under its lock.
    pub(super) async fn read_record(&self, key: &Key) -> Result<Option<Record>, LockError> {
        let key = key.clone();
        self.on_records(Turn::Records, |store| async move {
            record::kept_by(&*store)?.read(&key).await
        })
        .await
    }

    pub(super) async fn write_record(&self, write: RecordWrite) -> Result<bool, LockError> {
        self.on_records(Turn::Records, |store| async move {
            record::kept_by(&*store)?.write(&write).await
        })
        .await
    }

    /// Works on the records, on the engine's runtime. The work goes on if this future is dropped.
    async fn on_records<T, W, F>(&self, turn: Turn, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.engine().run(turn, TIMEOUT, work).await
    }
}

/// Reads the result of a run that succeeded.
pub(super) fn read<T: Remembered>(key: &Key, json: &str, ran: bool) -> Result<T, LockError> {
    T::decode(json, ran).map_err(|error| LockError::Run {
        key: key.clone(),
        reason: RunError::Undecodable {
            what: codec::undecodable::<T>(&error),
        },
    })
}
