//! The record in small numbers, and dblock's own rules about it.

use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::rules::{RecordEffect, change_record};
use dblock_core::store::{self, RecordChange, RecordEntry, RecordState};

use super::Attempt;

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    Processing,
    Succeeded,
    Failed,
}

/// The record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Record {
    pub(super) stands: State,
    pub(super) attempt: Attempt,
}

impl Record {
    fn entry(self) -> RecordEntry {
        RecordEntry {
            state: match self.stands {
                State::Processing => RecordState::Processing,
                State::Succeeded => RecordState::Succeeded,
                State::Failed => RecordState::Failed,
            },
            attempts: self.attempt.number.into(),
            fence_token: self.attempt.token.into(),
            fingerprint: None,
            result: None,
            error: None,
            holder: String::new(),
            keep: Duration::from_hours(1),
        }
    }

    /// As dblock's rules know it.
    fn real(self) -> Option<store::Record> {
        change_record(
            &key(),
            &RecordChange::Insert(self.entry()),
            None,
            Timestamp::EPOCH,
        )
        .left(None)
    }
}

fn key() -> Key {
    Key::new(None, "k").expect("it is a key")
}

/// Asks dblock's rules to write `new` in the place of the record that was `expected`, where this one is
/// `found`.
pub(super) fn write(found: Option<Record>, expected: Option<Record>, new: Record) -> Option<Record> {
    let change = match expected {
        None => RecordChange::Insert(new.entry()),
        Some(expected) => RecordChange::Replace(expected.entry().version(), new.entry()),
    };
    let found = found.and_then(Record::real);
    let RecordEffect::Written(written) = change_record(&key(), &change, found.as_ref(), Timestamp::EPOCH)
    else {
        return None;
    };
    debug_assert_eq!(written.version(), new.entry().version());
    Some(new)
}
