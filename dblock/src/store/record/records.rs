//! The records of a store: reading, writing, listing and purging them.

#[cfg(any(feature = "mysql", feature = "postgres"))]
use std::collections::HashMap;

use super::{Record, RecordState, RecordWrite};
use crate::key::Key;
use crate::store::{Purged, StoreError, StoreFuture};
#[cfg(feature = "run_once")]
use crate::store::{Store, StoreErrorKind};

/// The records of a store. [`carry_out`](super::carry_out) has the rules of a write.
pub trait Records: Send + Sync {
    /// Reads a record. It locks nothing.
    fn read<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<Record>, StoreError>>;

    /// Reads several records. Returns one answer for each key, in the order of the keys. The default reads
    /// them one after the other; a store that can read them in one round trip does so.
    fn read_all<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            let mut records = Vec::with_capacity(keys.len());
            for key in keys {
                records.push(self.read(key).await);
            }
            records
        })
    }

    /// Writes a record, and ends the lease that the write names, in one transaction. Returns whether it was
    /// written. The write is durable before it is answered.
    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>>;

    /// Reads records without locking them, ordered by key.
    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>>;

    /// One step of a purge. It looks at up to `limit` records in the order of their keys, starting after
    /// `after`, and deletes those that are no longer remembered. Records that are processing stay, whatever
    /// their age. If the schema has no records yet, it does nothing.
    fn purge<'a>(&'a self, after: Option<&'a Key>, limit: u32)
    -> StoreFuture<'a, Result<Purged, StoreError>>;
}

/// The records of `store`.
#[cfg(feature = "run_once")]
pub(crate) fn kept_by(store: &dyn Store) -> Result<&dyn Records, StoreError> {
    store.records().ok_or_else(|| {
        StoreError::new(
            StoreErrorKind::Unsupported,
            "this store keeps no records, so it cannot run anything once; use PostgreSQL, MySQL, MariaDB or SQLite",
        )
    })
}

/// A record, as far as it can be read, with its key.
#[cfg(any(feature = "mysql", feature = "postgres"))]
type Keyed = (Key, Result<Record, StoreError>);

/// The answers of [`Records::read_all`], from records in any order. A failed query is everybody's answer; a
/// record that cannot be read is that of its own key only.
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

    /// At most this many records. Default: 1,000.
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
