//! The record of a run of `run_once`, and the rules by which a store changes it.
//!
//! A store that can keep records answers [`Store::records`]. It decides nothing about a run: each
//! write names the version that its writer has read, and changes nothing when the record is another one by then.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use uuid::Uuid;

#[cfg(feature = "run_once")]
use super::Store;
use super::clock::micros;
use super::{Purged, StoreError, StoreErrorKind, StoreFuture};
use crate::key::Key;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RecordState {
    /// Its body has begun. If nobody holds the lock of its key, it crashed.
    Processing,
    /// Its body returned `Ok`. It does not run again while it is remembered.
    Succeeded,
    /// Its body returned `Err`. It may run again.
    Failed,
}

impl RecordState {
    /// The word in the table.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Processing => "processing",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// Reads the word in the table.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] for a word of a later version.
    pub fn parse(word: &str) -> Result<Self, StoreError> {
        let known = [Self::Processing, Self::Succeeded, Self::Failed];
        known
            .into_iter()
            .find(|state| state.as_str() == word)
            .ok_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Schema,
                    format!(
                        "a record is in the state {word:?}, which this program does not know: a later version has \
                         written it; upgrade the dblock crate"
                    ),
                )
            })
    }
}

/// The record of a key, as the store keeps it. Times are µs since the Unix epoch on the store's clock.
///
/// `Debug` leaves out `result` and `error`, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The key, with its namespace.
    pub key: Key,
    /// The state of the run.
    pub state: RecordState,
    /// How many attempts have begun.
    pub attempts: u32,
    /// The token of the lease under which the last attempt began.
    pub fence_token: i64,
    /// The hash of the argument that tells this work from other work.
    pub fingerprint: Option<Uuid>,
    /// The result as JSON. `None` unless it succeeded, and where the result could not be kept.
    pub result: Option<String>,
    /// The text of the error that the last attempt returned, or why a result could not be kept.
    pub error: Option<String>,
    /// Host, process and function of the last attempt.
    pub holder: String,
    /// When the last attempt began.
    pub started_at: i64,
    /// When it ended; 0 while it is processing.
    pub finished_at: i64,
    /// Until when it is remembered. Means nothing while it is processing.
    pub keep_until: i64,
    /// The clock when the record was read.
    pub now: i64,
}

impl Record {
    /// The version that a later write names as the one that it expects.
    pub fn version(&self) -> RecordVersion {
        RecordVersion {
            state: self.state,
            fence_token: self.fence_token,
            attempts: self.attempts,
        }
    }

    /// Whether it is to be taken for absent: its outcome is no longer remembered. Never while it is processing.
    pub fn is_forgotten(&self) -> bool {
        self.state != RecordState::Processing && self.keep_until <= self.now
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("key", &self.key)
            .field("state", &self.state)
            .field("attempts", &self.attempts)
            .field("fence_token", &self.fence_token)
            .field("holder", &self.holder)
            .field("started_at", &self.started_at)
            .field("finished_at", &self.finished_at)
            .field("keep_until", &self.keep_until)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Tells one write of a record from every other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordVersion {
    /// As in [`Record`].
    pub state: RecordState,
    /// As in [`Record`].
    pub fence_token: i64,
    /// As in [`Record`].
    pub attempts: u32,
}

/// The content that a write gives a record. `started_at` becomes now when it is processing and stays otherwise, `finished_at`
/// becomes 0 or now, and `keep_until` becomes now + `keep`. `Debug` leaves out `result` and `error`.
#[derive(Clone, PartialEq, Eq)]
pub struct RecordEntry {
    /// As in [`Record`].
    pub state: RecordState,
    /// As in [`Record`]. Absolute, so that a repeated write counts no attempt twice.
    pub attempts: u32,
    /// As in [`Record`].
    pub fence_token: i64,
    /// As in [`Record`].
    pub fingerprint: Option<Uuid>,
    /// As in [`Record`].
    pub result: Option<String>,
    /// As in [`Record`].
    pub error: Option<String>,
    /// As in [`Record`].
    pub holder: String,
    /// For how long it is remembered from now on.
    pub keep: Duration,
}

impl RecordEntry {
    /// As a fence token in the change of a [`Request`](super::Request): that of the lease. No lease has this token.
    pub const OF_THE_LEASE: i64 = 0;

    /// The version of the record once it is written.
    pub fn version(&self) -> RecordVersion {
        RecordVersion {
            state: self.state,
            fence_token: self.fence_token,
            attempts: self.attempts,
        }
    }
}

impl fmt::Debug for RecordEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordEntry")
            .field("version", &self.version())
            .field("holder", &self.holder)
            .field("keep", &self.keep)
            .finish_non_exhaustive()
    }
}

/// One write of one record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordWrite {
    /// The record's key.
    pub key: Key,
    /// The change to the record.
    pub change: RecordChange,
    /// A lease of the same key that ends in the same transaction, if the record is replaced and the lease is live. The
    /// row becomes free, without a successor, and others that wait for it are woken.
    pub release: Option<Uuid>,
}

impl RecordWrite {
    /// A write that ends no lease.
    pub fn new(key: Key, change: RecordChange) -> Self {
        Self {
            key,
            change,
            release: None,
        }
    }

    /// The lease that this write ends: only the replacement of a record ends one.
    pub fn ends(&self) -> Option<Uuid> {
        self.release
            .filter(|_| matches!(self.change, RecordChange::Replace(..)))
    }
}

/// The kinds of writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordChange {
    /// The first record of its key. Changes nothing if there is one.
    Insert(RecordEntry),
    /// In the place of the record with that version.
    Replace(RecordVersion, RecordEntry),
    /// Deletes the record with that version.
    Delete(RecordVersion),
}

impl RecordChange {
    /// The version that the record must have; `None` if there must be none.
    pub fn expected(&self) -> Option<RecordVersion> {
        match self {
            Self::Insert(_) => None,
            Self::Replace(version, _) | Self::Delete(version) => Some(*version),
        }
    }

    /// The record that is there afterwards; `None` if it is deleted.
    pub fn entry(&self) -> Option<&RecordEntry> {
        match self {
            Self::Insert(entry) | Self::Replace(_, entry) => Some(entry),
            Self::Delete(_) => None,
        }
    }

    /// The change of a request whose lease has this token.
    #[must_use]
    pub fn of_lease(&self, token: i64) -> Self {
        let mut change = self.clone();
        let (version, entry) = match &mut change {
            Self::Insert(entry) => (None, Some(entry)),
            Self::Replace(version, entry) => (Some(version), Some(entry)),
            Self::Delete(version) => (Some(version), None),
        };
        let tokens = [
            version.map(|version| &mut version.fence_token),
            entry.map(|entry| &mut entry.fence_token),
        ];
        for of_lease in tokens.into_iter().flatten() {
            if *of_lease == RecordEntry::OF_THE_LEASE {
                *of_lease = token;
            }
        }
        change
    }
}

/// Applies `change` to the record of `key`; `None` when it must change nothing. The rules of every store.
///
/// A record that succeeded and is still remembered is final: it can be deleted and not replaced. No record is replaced
/// by one with a smaller token.
pub fn carry_out(
    key: &Key,
    change: &RecordChange,
    found: Option<&Record>,
    now: i64,
) -> Option<Option<Record>> {
    let (entry, started_at) = match (change, found) {
        (RecordChange::Insert(entry), None) => (entry, now),
        (RecordChange::Replace(version, entry), Some(found)) if found.version() == *version => {
            let is_final = found.state == RecordState::Succeeded && found.keep_until > now;
            if is_final || entry.fence_token < found.fence_token {
                return None;
            }
            (entry, found.started_at)
        }
        (RecordChange::Delete(version), Some(found)) if found.version() == *version => return Some(None),
        _ => return None,
    };
    let processing = entry.state == RecordState::Processing;
    Some(Some(Record {
        key: key.clone(),
        state: entry.state,
        attempts: entry.attempts,
        fence_token: entry.fence_token,
        fingerprint: entry.fingerprint,
        result: entry.result.clone(),
        error: entry.error.clone(),
        holder: entry.holder.clone(),
        started_at: if processing { now } else { started_at },
        finished_at: if processing { 0 } else { now },
        keep_until: now.saturating_add(micros(entry.keep)),
        now,
    }))
}

/// The records of `store`.
#[cfg(feature = "run_once")]
pub(crate) fn kept_by(store: &dyn Store) -> Result<&dyn Records, StoreError> {
    store.records().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "this store keeps no records, so it cannot run anything once",
        )
    })
}

/// A record, as far as it can be read, with its key.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) type Keyed = (Key, Result<Record, StoreError>);

/// The answers of [`Records::read_all`], from records in any order. A failed query is everybody's answer; a record that
/// cannot be read is that of its own key only.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn in_order(
    keys: &[Key],
    found: Result<Vec<Keyed>, StoreError>,
) -> Vec<Result<Option<Record>, StoreError>> {
    match found {
        Ok(found) => {
            let found: HashMap<_, _> = found.into_iter().collect();
            keys.iter()
                .map(|key| found.get(key).cloned().transpose())
                .collect()
        }
        Err(error) => vec![Err(error); keys.len()],
    }
}

/// The records that an operator wants to see. By default all of them, at most 1,000.
///
/// ```
/// use dblock::store::{RecordFilter, RecordState};
///
/// let failed_payments = RecordFilter::new().prefix("pay:").state(RecordState::Failed);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RecordFilter {
    pub(crate) prefix: String,
    pub(crate) state: Option<RecordState>,
    pub(crate) limit: u32,
}

impl RecordFilter {
    /// All records, at most 1,000.
    pub fn new() -> Self {
        Self {
            prefix: String::new(),
            state: None,
            limit: 1_000,
        }
    }

    /// Keys that begin with this text. Default: all.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Records in this state. Default: in any.
    pub fn state(mut self, state: RecordState) -> Self {
        self.state = Some(state);
        self
    }

    /// At most so many records. Default: 1,000.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// For stores: what the keys begin with.
    pub fn key_prefix(&self) -> &str {
        &self.prefix
    }

    /// For stores: the state, if only one is wanted.
    pub fn wanted_state(&self) -> Option<RecordState> {
        self.state
    }

    /// For stores: the largest number of records.
    pub fn max_records(&self) -> u32 {
        self.limit
    }
}

impl Default for RecordFilter {
    fn default() -> Self {
        Self::new()
    }
}

/// The records of a store. [`carry_out`] has the rules of a write.
pub trait Records: Send + Sync {
    /// Reads a record. It locks nothing.
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>>;

    /// Reads several records. Returns one answer for each key, in the order of the keys. A store that can read them in one
    /// round trip does; otherwise they are read one after the other.
    fn read_all<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            let mut records = Vec::with_capacity(keys.len());
            for key in keys {
                records.push(self.read(key).await);
            }
            records
        })
    }

    /// Writes a record, and ends the lease that the write names, in one transaction. Returns whether it was written. It
    /// is durable before it is answered.
    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>>;

    /// Reads records without locking them, ordered by key.
    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>>;

    /// One step of a purge. It looks at up to `limit` records in the order of their keys, starting after `after`, and
    /// deletes those that are no longer remembered. Records that are processing stay, whatever their age. Where the
    /// tables are of a version without records, it does nothing.
    fn purge<'a>(&'a self, after: Option<&'a Key>, limit: u32)
    -> StoreFuture<'a, Result<Purged, StoreError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;

    fn entry(state: RecordState, fence_token: i64, attempts: u32) -> RecordEntry {
        RecordEntry {
            state,
            attempts,
            fence_token,
            fingerprint: None,
            result: None,
            error: None,
            holder: "host/1".into(),
            keep: Duration::from_micros(10),
        }
    }

    fn key() -> Key {
        Key::new(None, "k").unwrap()
    }

    fn put(change: &RecordChange, found: Option<&Record>, now: i64) -> Option<Record> {
        carry_out(&key(), change, found, now).flatten()
    }

    #[test]
    fn each_write_needs_the_version_that_was_read() {
        use RecordState::{Failed, Processing, Succeeded};
        let begin = entry(Processing, 7, 1);
        let insert = RecordChange::Insert(begin.clone());
        let processing = put(&insert, None, NOW).unwrap();
        assert_eq!((processing.started_at, processing.finished_at), (NOW, 0));
        assert_eq!(put(&insert, Some(&processing), NOW), None, "there is one");

        let done = entry(Succeeded, 7, 1);
        let version = begin.version();
        let others = [
            RecordVersion {
                fence_token: 6,
                ..version
            },
            RecordVersion {
                attempts: 2,
                ..version
            },
            RecordVersion {
                state: Failed,
                ..version
            },
        ];
        for other in others {
            let write = RecordChange::Replace(other, done.clone());
            assert_eq!(put(&write, Some(&processing), NOW), None, "{other:?}");
            assert_eq!(
                carry_out(&key(), &RecordChange::Delete(other), Some(&processing), NOW),
                None
            );
        }
        let older = RecordChange::Replace(version, entry(Succeeded, 6, 1));
        assert_eq!(put(&older, Some(&processing), NOW), None, "tokens only grow");
        let ended = put(&RecordChange::Replace(version, done), Some(&processing), NOW + 5).unwrap();
        assert_eq!(
            (ended.started_at, ended.finished_at, ended.keep_until),
            (NOW, NOW + 5, NOW + 15)
        );
        assert_eq!(
            carry_out(&key(), &RecordChange::Delete(ended.version()), Some(&ended), NOW),
            Some(None)
        );
        assert_eq!(
            put(&RecordChange::Replace(version, begin), None, NOW),
            None,
            "it is gone"
        );
    }

    #[test]
    fn what_succeeded_is_final_while_it_is_remembered() {
        let insert = RecordChange::Insert(entry(RecordState::Succeeded, 7, 1));
        let done = put(&insert, None, NOW).unwrap();
        let again = RecordChange::Replace(done.version(), entry(RecordState::Processing, 8, 1));
        assert_eq!(put(&again, Some(&done), done.keep_until - 1), None);
        assert!(put(&again, Some(&done), done.keep_until).is_some());
        let at = |now| Record { now, ..done.clone() };
        assert!(!at(done.keep_until - 1).is_forgotten() && at(done.keep_until).is_forgotten());
        let processing = Record {
            state: RecordState::Processing,
            ..at(i64::MAX)
        };
        assert!(!processing.is_forgotten());
    }

    #[test]
    fn debug_shows_neither_result_nor_error() {
        let mut secret = entry(RecordState::Succeeded, 7, 1);
        secret.result = Some("hush".into());
        secret.error = Some("hush".into());
        let record = put(&RecordChange::Insert(secret.clone()), None, NOW);
        let shown = format!("{secret:?} {record:?}");
        assert!(shown.contains("host/1") && !shown.contains("hush"), "{shown}");
    }

    #[test]
    fn a_state_of_a_later_version_is_refused() {
        for state in [
            RecordState::Processing,
            RecordState::Succeeded,
            RecordState::Failed,
        ] {
            assert_eq!(RecordState::parse(state.as_str()).unwrap(), state);
        }
        let error = RecordState::parse("paused").unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("upgrade the dblock crate"), "{error}");
    }
}
