//! The record of a run of `run_once`.
//!
//! A store that can keep records answers [`Store::records`](super::Store::records). It decides nothing about
//! a run: each write names the version that its writer has read, and changes nothing when the record is
//! another one by then.

mod change;
mod records;

use std::fmt;
use std::time::Duration;

use uuid::Uuid;

pub use self::change::{RecordChange, RecordEffect, RecordWrite, WriteLease, change_record};
pub use self::records::{RecordFilter, Records};
use super::clock::Timestamp;
use super::{StoreError, StoreErrorKind};
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

/// What a record and the lock of its key tell together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RunState {
    /// Its body has begun, and its attempt has the lock.
    Running,
    /// Its body has begun, and its attempt has lost the lock, or ended without an outcome. What the next call
    /// does is decided by its `on_crash`: with "stop" the run is in doubt, and somebody must decide.
    Crashed,
    /// Its body returned `Ok`.
    Succeeded,
    /// Its body returned `Err`.
    Failed,
}

impl RunState {
    /// The word for people and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Crashed => "crashed",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// For stores: whether the attempt of such a record [has the lock](Record::has_lock). `None` where that says
    /// nothing.
    pub fn has_lock(self) -> Option<bool> {
        match self {
            Self::Running => Some(true),
            Self::Crashed => Some(false),
            Self::Succeeded | Self::Failed => None,
        }
    }

    /// The state in the record.
    pub(crate) fn recorded(self) -> RecordState {
        match self {
            Self::Running | Self::Crashed => RecordState::Processing,
            Self::Succeeded => RecordState::Succeeded,
            Self::Failed => RecordState::Failed,
        }
    }
}

/// The record of a key, as the store keeps it. Times are those of the store's clock.
///
/// `Debug` leaves out `result` and `error`, which may contain secrets.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The key. A manager gives it as it was typed, and a store with the manager's namespace.
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
    pub started_at: Timestamp,
    /// When it ended; [`Timestamp::EPOCH`] while it is processing.
    pub finished_at: Timestamp,
    /// Until when it is remembered. Without meaning while it is processing.
    pub keep_until: Timestamp,
    /// The clock when the record was read.
    pub now: Timestamp,
    /// Whether its attempt has the lock of the key: the row is held, under no later token. Read together with
    /// the record, by [`Records::list`] only, and only where it is processing; else `None`.
    pub has_lock: Option<bool>,
}

impl Record {
    /// For stores: a record in this state, read at `now`. The rest is empty.
    pub fn new(key: Key, state: RecordState, now: Timestamp) -> Self {
        Self {
            key,
            state,
            attempts: 0,
            fence_token: 0,
            fingerprint: None,
            result: None,
            error: None,
            holder: String::new(),
            started_at: Timestamp::EPOCH,
            finished_at: Timestamp::EPOCH,
            keep_until: Timestamp::EPOCH,
            now,
            has_lock: None,
        }
    }

    /// What it tells together with the lock of its key. A record that was not listed, and is processing,
    /// counts as running.
    pub fn run_state(&self) -> RunState {
        match self.state {
            RecordState::Processing if self.has_lock == Some(false) => RunState::Crashed,
            RecordState::Processing => RunState::Running,
            RecordState::Succeeded => RunState::Succeeded,
            RecordState::Failed => RunState::Failed,
        }
    }

    /// The version that a later write names as the one that it expects.
    pub fn version(&self) -> RecordVersion {
        RecordVersion {
            state: self.state,
            fence_token: self.fence_token,
            attempts: self.attempts,
        }
    }

    /// For stores: the record in a list, with [`has_lock`](Self::has_lock), which counts while it is
    /// processing.
    #[must_use]
    pub fn listed(mut self, has_lock: bool) -> Self {
        self.has_lock = (self.state == RecordState::Processing).then_some(has_lock);
        self
    }

    /// Whether its outcome is no longer remembered, so that it counts as absent. Never while it is
    /// processing.
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
            .field("has_lock", &self.has_lock)
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

/// The content that a write gives a record. `started_at` becomes now when it is processing and stays
/// otherwise, `finished_at` becomes the epoch or now, and `keep_until` becomes now + `keep`. `Debug` leaves out
/// `result` and `error`.
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
    /// In the change of a [`Request`](super::Request), this fence token stands for the token of the request's
    /// lease. No lease has this token itself.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_neither_result_nor_error() {
        let secret = RecordEntry {
            state: RecordState::Succeeded,
            attempts: 1,
            fence_token: 7,
            fingerprint: None,
            result: Some("hush".into()),
            error: Some("hush".into()),
            holder: "host/1".into(),
            keep: Duration::ZERO,
        };
        let key = Key::new(None, "k").unwrap();
        let record = change_record(
            &key,
            &RecordChange::Insert(secret.clone()),
            None,
            Timestamp::EPOCH,
        )
        .left(None);
        let shown = format!("{secret:?} {:?}", record.unwrap());
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

    #[test]
    fn a_record_tells_the_run_together_with_the_lock() {
        let now = Timestamp::from_micros(5);
        let record = |state| Record::new(Key::new(None, "k").unwrap(), state, now);
        for (state, has_lock, told, word, counts) in [
            (
                RecordState::Processing,
                true,
                RunState::Running,
                "running",
                Some(true),
            ),
            (
                RecordState::Processing,
                false,
                RunState::Crashed,
                "crashed",
                Some(false),
            ),
            (
                RecordState::Succeeded,
                false,
                RunState::Succeeded,
                "succeeded",
                None,
            ),
            (RecordState::Failed, true, RunState::Failed, "failed", None),
        ] {
            let listed = record(state).listed(has_lock);
            assert_eq!((listed.run_state(), listed.has_lock), (told, counts));
            assert_eq!(
                (told.as_str(), told.has_lock(), told.recorded()),
                (word, counts, state)
            );
        }
        assert_eq!(
            record(RecordState::Processing).run_state(),
            RunState::Running,
            "not listed"
        );
    }

    #[test]
    fn an_outcome_is_forgotten_when_its_time_is_over() {
        let at = Timestamp::from_micros;
        let is_forgotten = |state, keep_until| {
            let mut record = Record::new(Key::new(None, "k").unwrap(), state, at(5));
            record.keep_until = at(keep_until);
            record.is_forgotten()
        };
        assert!(is_forgotten(RecordState::Succeeded, 5) && is_forgotten(RecordState::Failed, 4));
        assert!(!is_forgotten(RecordState::Succeeded, 6) && !is_forgotten(RecordState::Processing, 4));
    }

    #[test]
    fn a_version_is_that_of_the_write() {
        let mut record = Record::new(
            Key::new(None, "k").unwrap(),
            RecordState::Failed,
            Timestamp::EPOCH,
        );
        (record.attempts, record.fence_token) = (3, 7);
        let expected = RecordVersion {
            state: RecordState::Failed,
            fence_token: 7,
            attempts: 3,
        };
        assert_eq!(record.version(), expected);
    }
}
