//! Reads records, and decides about them by hand.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::codec::{self, Remembered};
use super::options::{RunOptions, check_remember};
use crate::Key;
use crate::LockOptions;
use crate::body;
use crate::engine::{Lease, Permit};
use crate::manager::{Admin, LockManager};
use crate::store::{Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordWrite};
use crate::store::{Store, StoreError, StoreErrorKind, kept};
use crate::{LockError, RunError};

/// How long one call about a record may take in the store.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The outcome that [`Admin::resolve`] gives a run that is in doubt.
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
    /// It had its effect, and its record has a wrong result. From [`Resolution::corrected`].
    #[non_exhaustive]
    Corrected {
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
        let json = encoded(value, remember)?;
        Ok(Self::Succeeded { json, remember })
    }

    /// The result of a run that succeeded is `value`, and not what its record says. For a result that was
    /// given by hand and is wrong, or that no longer decodes.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager, OnCrash, Once, Resolution, RunOptions};
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let day = Duration::from_secs(24 * 3600);
    /// let options = || RunOptions::new(day, OnCrash::Stop);
    /// let pay = async |_| Ok::<_, LockError>(7_u64);
    /// locks.run_once("pay:42", options(), pay).await?;
    /// let shown = locks.admin().record::<serde_json::Value>("pay:42").await?.expect("it ran");
    /// println!("the result is {:?}", shown.result);
    /// assert!(locks.admin().resolve(&shown.record, Resolution::corrected(&8_u64, day)?).await?);
    /// assert_eq!(locks.run_once("pay:42", options(), pay).await?, Once::Replayed(8));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`succeeded`](Self::succeeded).
    pub fn corrected(value: &impl Serialize, remember: Duration) -> Result<Self, LockError> {
        let json = encoded(value, remember)?;
        Ok(Self::Corrected { json, remember })
    }
}

fn encoded(value: &impl Serialize, remember: Duration) -> Result<String, LockError> {
    check_remember(remember)?;
    let json = codec::within(serde_json::to_string(value), RunOptions::MAX_RESULT);
    json.map_err(|why| LockError::invalid(format!("the result cannot be kept: {why}")))
}

/// A record with its result, from [`Admin::record`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RunRecord<T> {
    /// The record as it is in the table.
    pub record: Record,
    /// The result of a run that succeeded. `None` for any other run, and for a result that could not be kept.
    pub result: Option<T>,
}

/// The records of `run_once`. These calls need the feature `run_once`.
impl Admin<'_> {
    /// Reads the record of the run of `key`; `None` if there is none.
    ///
    /// # Errors
    /// [`LockError::Run`] with [`RunError::Undecodable`] for a result of another type, [`LockError::Invalid`]
    /// for a bad key, [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](LockManager::shutdown).
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
    /// assert!(locks.admin().record::<u64>("pay:42").await?.is_none());
    /// let options = RunOptions::new(Duration::from_secs(3600), OnCrash::Stop);
    /// locks.run_once("pay:42", options, async |_| Ok::<_, LockError>(7_u64)).await?;
    /// let found = locks.admin().record::<u64>("pay:42").await?.expect("it ran");
    /// assert_eq!((found.record.state, found.result), (RecordState::Succeeded, Some(7)));
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub async fn record<T: Remembered>(
        self,
        key: impl AsRef<str>,
    ) -> Result<Option<RunRecord<T>>, LockError> {
        let key_text = key.as_ref();
        let key = self.locks.key(key_text)?;
        let Some(record) = self
            .locks
            .look_at_record(&key)
            .await?
            .filter(|record| !record.is_forgotten())
        else {
            return Ok(None);
        };
        let Some(record) = self.with_its_lock(key_text, record).await? else {
            return Ok(None);
        };
        let json = record.result.as_deref();
        let result = json.map(|json| read(&key, json, false)).transpose()?;
        let mut record = record;
        record.key = key.to_typed();
        Ok(Some(RunRecord { record, result }))
    }

    /// Finds out whether a run that is processing has the lock of its key, from one moment with the record.
    async fn with_its_lock(self, key: &str, record: Record) -> Result<Option<Record>, LockError> {
        if record.state != RecordState::Processing {
            return Ok(Some(record));
        }
        // The keys that begin with this one come after it.
        let of_key = self.locks.key(key)?;
        let found = self
            .list_records(Some(&of_key), RecordFilter::new().prefix(key).limit(1))
            .await?;
        Ok(found.into_iter().find(|found| found.key.as_str() == key))
    }

    /// Lists the records that `filter` selects, ordered by key, without decoding their results. Only keys of
    /// this manager's namespace are included.
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, or keeps no records, [`LockError::Shutdown`]
    /// after [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn records(self, filter: RecordFilter) -> Result<Vec<Record>, LockError> {
        self.list_records(None, filter).await
    }

    /// An error names the `key` that the list is for.
    async fn list_records(
        self,
        key: Option<&Key>,
        mut filter: RecordFilter,
    ) -> Result<Vec<Record>, LockError> {
        if let Some(namespace) = self.locks.namespace() {
            let prefix = format!("{namespace}:{}", filter.get_prefix());
            filter = filter.prefix(prefix);
        }
        let list = self.locks.on_records(Permit::Admin, key, |store| async move {
            kept::kept_by(&*store)?.list(&filter).await
        });
        let mut records = self.locks.in_time(key, list).await?;
        for record in &mut records {
            record.key = record.key.out_of(self.locks.namespace());
        }
        Ok(records)
    }

    /// Deletes the record of a run that succeeded or failed, so that the next call runs it again as its first
    /// attempt. `shown` is the record that the decision is about, from [`record`](Self::record) or
    /// [`records`](Self::records). A record that has changed since stays as it is: perhaps the run has
    /// succeeded meanwhile. Returns whether the record was deleted.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a record that is processing: [`resolve`](Self::resolve) decides about those.
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    pub async fn forget(self, shown: &Record) -> Result<bool, LockError> {
        let key = self.locks.key(shown.key.as_str())?;
        if shown.state == RecordState::Processing {
            return Err(LockError::invalid(format!(
                "the run {:?} is processing, or crashed: it cannot be forgotten; wait for its end, or decide about it \
                 with `Admin::resolve`",
                key.typed()
            )));
        }
        tracing::warn!(key = %key.typed(), state = shown.state.as_str(), "forgetting a run");
        let delete = RecordWrite::new(key.clone(), RecordChange::Delete(shown.version()));
        self.locks
            .in_time(Some(&key), self.locks.write_record(Permit::Records, delete))
            .await
    }

    /// Decides about a run that is in doubt, or that has failed. It takes the lock of the key, so no attempt
    /// is running meanwhile. `shown` is the record that the decision is about, from [`record`](Self::record)
    /// or [`records`](Self::records). A record that has changed since stays as it is: the decision was about
    /// another attempt. Returns whether the record was changed. A run that succeeded needs a
    /// [`corrected`](Resolution::corrected); the other resolutions leave its record as it is.
    ///
    /// # Errors
    /// [`LockError::Busy`] while an attempt is running, [`LockError::Invalid`] for a correction of a run that
    /// did not succeed, [`LockError::Store`] when the store could not be asked, [`LockError::Lost`] when the
    /// lease ended before anything was decided, [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the call: it may still be carried out.
    ///
    /// ```no_run
    /// # async fn decide(locks: &dblock::LockManager) -> Result<(), dblock::LockError> {
    /// use dblock::{Resolution, store::{RecordFilter, RunState}};
    ///
    /// # let was_cancelled = |_: &str| true;
    /// for record in locks.admin().records(RecordFilter::new().run_state(RunState::Crashed)).await? {
    ///     println!("{} was begun by {}", record.key, record.holder);
    ///     // The provider has cancelled the payment.
    ///     if was_cancelled(record.key.as_str()) {
    ///         locks.admin().resolve(&record, Resolution::RunAgain).await?;
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn resolve(self, shown: &Record, resolution: Resolution) -> Result<bool, LockError> {
        let has_succeeded = shown.state == RecordState::Succeeded;
        match resolution {
            Resolution::Corrected { .. } if !has_succeeded => {
                let message = "only the result of a run that succeeded can be corrected; decide about another one by \
                               `Resolution::succeeded`";
                return Err(LockError::invalid(message));
            }
            Resolution::RunAgain | Resolution::Succeeded { .. } if has_succeeded => return Ok(false),
            _ => {}
        }
        let key = self.locks.key(shown.key.as_str())?;
        let hold = self.locks.hold(&key, &LockOptions::new()).await?;
        let resolved = self.resolve_inside(&key, hold.lease(), shown, resolution).await;
        // A release that is not confirmed is in the log, and changes nothing about the record.
        let _ = body::leave(vec![hold], true).await;
        resolved
    }

    async fn resolve_inside(
        self,
        key: &Key,
        lease: &Lease,
        shown: &Record,
        resolution: Resolution,
    ) -> Result<bool, LockError> {
        let found = self.locks.look_at_record(key).await?;
        // After a pause that was longer than the lease, what was read may be the record of an attempt that
        // runs.
        lease.check()?;
        let is_meant = |record: &Record| {
            let is_forgotten = record.state == RecordState::Succeeded && record.is_forgotten();
            record.version() == shown.version() && !is_forgotten
        };
        let Some(record) = found.filter(is_meant) else {
            return Ok(false);
        };
        tracing::warn!(key = %key.typed(), state = record.state.as_str(), "deciding about a run by hand");
        let expected = record.version();
        let succeeded = |fence_token, json, keep| RecordEntry {
            state: RecordState::Succeeded,
            attempts: record.attempts,
            fence_token,
            fingerprint: record.fingerprint,
            result: Some(json),
            error: None,
            holder: record.holder,
            keep,
        };
        let change = match resolution {
            Resolution::RunAgain => RecordChange::Delete(expected),
            Resolution::Succeeded { json, remember } => {
                RecordChange::Replace(expected, succeeded(expected.fence_token, json, remember))
            }
            // A token of its own tells it from the record that it corrects.
            Resolution::Corrected { json, remember } => {
                let larger = expected.fence_token.saturating_add(1).max(lease.fence_token());
                RecordChange::Replace(expected, succeeded(larger, json, remember))
            }
        };
        let write = RecordWrite::new(key.clone(), change);
        self.locks
            .in_time(Some(key), self.locks.write_record(Permit::Records, write))
            .await
    }
}

impl LockManager {
    /// Reads a record without its lock.
    pub(super) async fn look_at_record(&self, key: &Key) -> Result<Option<Record>, LockError> {
        self.in_time(Some(key), self.engine().record(key)).await
    }

    /// Reads a record when its run has ended.
    pub(super) async fn read_record(&self, key: &Key) -> Result<Option<Record>, LockError> {
        let of_store = key.clone();
        self.on_records(Permit::Outcomes, Some(key), |store| async move {
            kept::kept_by(&*store)?.read(&of_store).await
        })
        .await
    }

    pub(super) async fn write_record(&self, which: Permit, write: RecordWrite) -> Result<bool, LockError> {
        let key = write.key.clone();
        let written = self.on_records(which, Some(&key), |store| async move {
            kept::kept_by(&*store)?.write(&write).await
        });
        // In a box, because the future of each run has this one.
        Box::pin(written).await
    }

    /// What an operator asks, with the wait for its permit.
    async fn in_time<T>(
        &self,
        key: Option<&Key>,
        asked: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        self.engine()
            .within(Some(TIMEOUT), asked)
            .await
            .unwrap_or_else(|| {
                let message = format!("the database has not answered within {TIMEOUT:?}");
                let error = StoreError::new(StoreErrorKind::Interrupted, message);
                Err(LockError::store_for(key, error))
            })
    }

    /// Works on the records, on the engine's runtime. Work that has begun goes on if this future is dropped.
    async fn on_records<T, W, F>(&self, which: Permit, key: Option<&Key>, work: W) -> Result<T, LockError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<dyn Store>) -> F + Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        self.engine().run(which, key, TIMEOUT, work).await
    }
}

/// Reads the result of a run that succeeded.
pub(super) fn read<T: Remembered>(key: &Key, json: &str, ran: bool) -> Result<T, LockError> {
    T::decode(json, ran).map_err(|error| {
        let what = codec::undecodable::<T>(&error);
        LockError::run(key.to_typed(), RunError::undecodable(what))
    })
}
