//! The records of a store: reading, writing, listing and purging them.

use super::{Record, RecordState, RecordWrite, RunState};
use crate::key::Key;
use crate::store::{Purged, StoreError, StoreFuture};

/// The records of a store. [`change_record`](crate::store::rules::change_record) has the rules of a write.
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

    /// Writes a record in one transaction with what [`WriteLease`](super::WriteLease) says of its lease. Returns
    /// whether it was written. The write is durable before it is answered.
    ///
    /// A write that needs a lease never waits for a locked row: the transaction that locks it may wait for
    /// this caller. It writes nothing, and answers
    /// [`StoreErrorKind::Conflict`](crate::store::StoreErrorKind::Conflict) at once. SQLite locks no rows:
    /// there it waits for the file like any other write, for a second at most, before it answers so.
    fn write<'a>(&'a self, write: &'a RecordWrite) -> StoreFuture<'a, Result<bool, StoreError>>;

    /// Reads records without locking them, ordered by key. For each record that is processing it also reads
    /// whether its attempt [has the lock](Record::has_lock). Both reads are of one moment. Otherwise a run
    /// that ends between them would seem crashed.
    fn list<'a>(&'a self, filter: &'a RecordFilter) -> StoreFuture<'a, Result<Vec<Record>, StoreError>>;

    /// One step of a purge. It looks at up to `limit` records in the order of their keys, starting after
    /// `after`, and deletes those that are no longer remembered. Records that are processing stay, whatever
    /// their age. If the schema has no records yet, it does nothing.
    fn purge<'a>(&'a self, after: Option<&'a Key>, limit: u32)
    -> StoreFuture<'a, Result<Purged, StoreError>>;
}

/// The records that an operator wants to see. By default all of them, at most 1,000.
///
/// ```
/// # use dblock_core as dblock;
/// use dblock::store::{RecordFilter, RecordState};
///
/// let failed_payments = RecordFilter::new().prefix("pay:").state(RecordState::Failed);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RecordFilter {
    prefix: String,
    state: Option<RecordState>,
    run: Option<RunState>,
    limit: u32,
}

impl RecordFilter {
    /// All records, at most 1,000.
    pub fn new() -> Self {
        Self {
            prefix: String::new(),
            state: None,
            run: None,
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

    /// Records of runs in this state, such as those that have crashed. Default: in any.
    ///
    /// ```
    /// # use dblock_core as dblock;
    /// use dblock::store::{RecordFilter, RunState};
    ///
    /// let in_doubt = RecordFilter::new().run_state(RunState::Crashed);
    /// ```
    pub fn run_state(mut self, state: RunState) -> Self {
        self.state = Some(state.recorded());
        self.run = Some(state);
        self
    }

    /// At most this many records. Default: 1,000.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// For stores: what the keys begin with.
    pub fn get_prefix(&self) -> &str {
        &self.prefix
    }

    /// For stores: the state, if only one is wanted.
    pub fn get_state(&self) -> Option<RecordState> {
        self.state
    }

    /// For stores: the state of the runs, if only one is wanted.
    pub fn get_run_state(&self) -> Option<RunState> {
        self.run
    }

    /// For stores: the largest number of records.
    pub fn get_limit(&self) -> u32 {
        self.limit
    }
}

impl Default for RecordFilter {
    fn default() -> Self {
        Self::new()
    }
}
