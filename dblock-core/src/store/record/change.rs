//! The writes of a record, and the rules by which a store carries them out.

use uuid::Uuid;

use super::{Record, RecordEntry, RecordState, RecordVersion};
use crate::key::Key;
use crate::store::clock::Timestamp;

/// One write of one record.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RecordWrite {
    /// The record's key.
    pub key: Key,
    /// The change to the record.
    pub change: RecordChange,
    /// What the write demands of a lease of its key, or does to it.
    pub lease: WriteLease,
}

/// The part that a lease has in a write of the record of its key. No write both needs a lease and ends one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteLease {
    /// None: the lock's row is neither read nor written.
    None,
    /// This lease must be live: otherwise nothing is written. No release and no takeover of the row comes
    /// between this check and the commit.
    Needs(Uuid),
    /// This lease ends in the same transaction, if the record is [replaced](RecordChange::Replace) and the lease
    /// is live. Its row becomes free, without a successor, and those that wait for it are woken. The record is
    /// written even where the lease is over.
    Ends(Uuid),
}

impl RecordWrite {
    /// A write that ends no lease and needs none.
    pub fn new(key: Key, change: RecordChange) -> Self {
        Self {
            key,
            change,
            lease: WriteLease::None,
        }
    }

    /// A write that is carried out only while the lease is live. It ends no lease.
    pub fn under(key: Key, change: RecordChange, lease_id: Uuid) -> Self {
        Self {
            lease: WriteLease::Needs(lease_id),
            ..Self::new(key, change)
        }
    }

    /// The lease that must be live for this write.
    pub fn needs(&self) -> Option<Uuid> {
        match self.lease {
            WriteLease::Needs(lease_id) => Some(lease_id),
            WriteLease::None | WriteLease::Ends(_) => None,
        }
    }

    /// The lease that this write ends: only the replacement of a record ends one.
    pub fn ends(&self) -> Option<Uuid> {
        match (self.lease, &self.change) {
            (WriteLease::Ends(lease_id), RecordChange::Replace(..)) => Some(lease_id),
            _ => None,
        }
    }
}

/// The kinds of writes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordChange {
    /// The first record of its key. Changes nothing if there is one.
    Insert(RecordEntry),
    /// Replaces the record that has this version.
    Replace(RecordVersion, RecordEntry),
    /// Deletes the record that has this version.
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

/// What a change does to the record of its key, from [`change_record`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordEffect {
    /// Nothing: the record is not the expected one, or is final.
    Nothing,
    /// This record is written.
    Written(Record),
    /// The record is deleted.
    Deleted,
}

impl RecordEffect {
    /// The record that there is afterwards, where `found` was there before.
    pub fn left(self, found: Option<Record>) -> Option<Record> {
        match self {
            Self::Nothing => found,
            Self::Written(record) => Some(record),
            Self::Deleted => None,
        }
    }
}

/// Applies `change` to the record of `key`, at the time `now`. The rules of every store.
///
/// A record that succeeded and is still remembered is final. It can only be deleted, or replaced by another
/// success with a larger token. No record is replaced by one with a smaller token.
pub fn change_record(
    key: &Key,
    change: &RecordChange,
    found: Option<&Record>,
    now: Timestamp,
) -> RecordEffect {
    let (entry, started_at) = match (change, found) {
        (RecordChange::Insert(entry), None) => (entry, now),
        (RecordChange::Replace(version, entry), Some(found)) if found.version() == *version => {
            let is_final = found.state == RecordState::Succeeded && found.keep_until > now;
            let corrects = entry.state == RecordState::Succeeded && entry.fence_token > found.fence_token;
            if is_final && !corrects || entry.fence_token < found.fence_token {
                return RecordEffect::Nothing;
            }
            (entry, found.started_at)
        }
        (RecordChange::Delete(version), Some(found)) if found.version() == *version => {
            return RecordEffect::Deleted;
        }
        _ => return RecordEffect::Nothing,
    };
    let processing = entry.state == RecordState::Processing;
    RecordEffect::Written(Record {
        key: key.clone(),
        state: entry.state,
        attempts: entry.attempts,
        fence_token: entry.fence_token,
        fingerprint: entry.fingerprint,
        result: entry.result.clone(),
        error: entry.error.clone(),
        holder: entry.holder.clone(),
        started_at: if processing { now } else { started_at },
        finished_at: if processing { Timestamp::EPOCH } else { now },
        keep_until: now + entry.keep,
        now,
        has_lock: None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000);
    const MICRO: Duration = Duration::from_micros(1);

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

    fn put(change: &RecordChange, found: Option<&Record>, now: Timestamp) -> Option<Record> {
        change_record(&key(), change, found, now).left(None)
    }

    #[test]
    fn a_write_needs_a_lease_or_ends_one() {
        let id = Uuid::from_u128(1);
        let begin = RecordChange::Insert(entry(RecordState::Processing, 7, 1));
        let write = RecordWrite::new(key(), begin.clone());
        assert_eq!((write.needs(), write.ends()), (None, None));
        let write = RecordWrite::under(key(), begin.clone(), id);
        assert_eq!((write.needs(), write.ends()), (Some(id), None));
        let done = entry(RecordState::Succeeded, 7, 1);
        let version = done.version();
        for (change, expected, ends) in [
            (RecordChange::Replace(version, done), Some(version), Some(id)),
            (RecordChange::Delete(version), Some(version), None),
            (begin, None, None),
        ] {
            assert_eq!(change.expected(), expected);
            let mut write = RecordWrite::new(key(), change);
            write.lease = WriteLease::Ends(id);
            assert_eq!((write.needs(), write.ends()), (None, ends), "{write:?}");
        }
    }

    #[test]
    fn each_write_needs_the_version_that_was_read() {
        use RecordState::{Failed, Processing, Succeeded};
        let begin = entry(Processing, 7, 1);
        let insert = RecordChange::Insert(begin.clone());
        let processing = put(&insert, None, NOW).unwrap();
        assert_eq!(
            (processing.started_at, processing.finished_at),
            (NOW, Timestamp::EPOCH)
        );
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
                change_record(&key(), &RecordChange::Delete(other), Some(&processing), NOW),
                RecordEffect::Nothing
            );
        }
        let older = RecordChange::Replace(version, entry(Succeeded, 6, 1));
        assert_eq!(put(&older, Some(&processing), NOW), None, "tokens only grow");
        let ended = put(
            &RecordChange::Replace(version, done),
            Some(&processing),
            NOW + 5 * MICRO,
        )
        .unwrap();
        assert_eq!(
            (ended.started_at, ended.finished_at, ended.keep_until),
            (NOW, NOW + 5 * MICRO, NOW + 15 * MICRO)
        );
        assert_eq!(
            change_record(&key(), &RecordChange::Delete(ended.version()), Some(&ended), NOW),
            RecordEffect::Deleted
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
        assert_eq!(put(&again, Some(&done), done.keep_until - MICRO), None);
        assert!(put(&again, Some(&done), done.keep_until).is_some());
        let corrected = RecordChange::Replace(done.version(), entry(RecordState::Succeeded, 8, 1));
        assert!(put(&corrected, Some(&done), NOW).is_some());
        let repeated = RecordChange::Replace(done.version(), entry(RecordState::Succeeded, 7, 1));
        assert_eq!(put(&repeated, Some(&done), NOW), None, "with the same token");
        let at = |now| Record { now, ..done.clone() };
        assert!(!at(done.keep_until - MICRO).is_forgotten() && at(done.keep_until).is_forgotten());
        let processing = Record {
            state: RecordState::Processing,
            ..at(Timestamp::from_micros(i64::MAX))
        };
        assert!(!processing.is_forgotten());
    }
}
