//! The rules of `run_once`: what a call does about the record that it finds. No I/O.
//!
//! | record | before the lock | under the lock |
//! |---|---|---|
//! | none, or no longer remembered | run, attempt 1 | the same |
//! | any other, with another fingerprint | refuse: `KeyReused` | the same |
//! | succeeded | replay | the same |
//! | failed, attempts used up | refuse: `GaveUp` | the same |
//! | failed, within the back-off | refuse: `NotYet` | the same |
//! | failed otherwise | run, the next attempt | the same |
//! | processing | ask for the lock | crashed: run the next attempt, or refuse: `InDoubt`, `GaveUp` |

use std::time::Duration;

use uuid::Uuid;

use crate::error::RunError;
use crate::store::clock::Timestamp;
use crate::store::{Record, RecordChange, RecordEntry, RecordState, RecordVersion};

/// The longest pause between two attempts.
const LONGEST_BACKOFF: Duration = Duration::from_hours(24);

/// The rule for a run that crashed: its body began and did not return, and nobody knows how far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnCrash {
    /// The body runs again. For work that may be done twice, such as a call that carries an idempotency key
    /// of its own.
    Retry,
    /// The body does not run again. Calls fail with [`RunError::InDoubt`] until
    /// `Admin::resolve` says what happened.
    Stop,
    /// The body runs again, and that is safe: all its work is in the transaction that it gives to
    /// `Run::complete_in`, of which a crash leaves nothing. A body that returns
    /// `Ok` without calling that fails with [`RunError::NotCompleted`].
    CompleteIn,
}

/// When the body of a run begins again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    pub on_crash: OnCrash,
    /// How often it may begin; `None` for no limit.
    pub max_attempts: Option<u32>,
    /// The pause after the first failure.
    pub backoff: Duration,
}

impl Policy {
    /// Without a limit of attempts and a pause.
    pub fn new(on_crash: OnCrash) -> Self {
        Self {
            on_crash,
            max_attempts: None,
            backoff: Duration::ZERO,
        }
    }
}

/// The decision about a record.
#[derive(Debug)]
pub enum Decision {
    /// Begin an attempt, in the place of the record of that version.
    Run {
        expected: Option<RecordVersion>,
        attempt: u32,
    },
    /// Answer with its result.
    Replay(Record),
    /// An attempt runs or has crashed. Only who has the lock can tell which.
    Processing(Record),
    Refuse(RunError),
}

/// Decides without the lock.
pub fn decide(found: Option<Record>, policy: &Policy, fingerprint: Option<Uuid>) -> Decision {
    let Some(record) = found else {
        return Decision::Run {
            expected: None,
            attempt: 1,
        };
    };
    if record.is_forgotten() {
        return Decision::Run {
            expected: Some(record.version()),
            attempt: 1,
        };
    }
    let differs = |known: Uuid| fingerprint.is_some_and(|asked| asked != known);
    if record.fingerprint.is_some_and(differs) {
        return Decision::Refuse(RunError::KeyReused);
    }
    match record.state {
        RecordState::Succeeded => Decision::Replay(record),
        RecordState::Processing => Decision::Processing(record),
        RecordState::Failed => {
            let pause = backoff(policy.backoff, record.attempts);
            let retry_after = (record.finished_at + pause).since(record.now);
            // A statement may read its clock before the row.
            let pauses = !policy.backoff.is_zero() && !retry_after.is_zero();
            match again(&record, policy) {
                Decision::Run { .. } if pauses => Decision::Refuse(RunError::NotYet { retry_after }),
                decision => decision,
            }
        }
    }
}

/// Decides under the lock. A record in `Processing` is then left by a crash.
pub fn decide_inside(found: Option<Record>, policy: &Policy, fingerprint: Option<Uuid>) -> Decision {
    match decide(found, policy, fingerprint) {
        Decision::Processing(record) if policy.on_crash == OnCrash::Stop => {
            Decision::Refuse(RunError::InDoubt {
                attempt: record.attempts,
                since: record.now.since(record.started_at),
                holder: record.holder,
            })
        }
        Decision::Processing(record) => again(&record, policy),
        decision => decision,
    }
}

/// Whether a record that was found under the lock was begun under a later lease. If so, this lock was lost.
/// The other run is no crash.
pub fn is_later(found: &Record, fence_token: i64) -> bool {
    found.state != RecordState::Succeeded && found.fence_token > fence_token
}

/// The next attempt, if there may be one.
fn again(record: &Record, policy: &Policy) -> Decision {
    if policy.max_attempts.is_some_and(|most| record.attempts >= most) {
        return Decision::Refuse(RunError::GaveUp {
            attempts: record.attempts,
        });
    }
    Decision::Run {
        expected: Some(record.version()),
        attempt: record.attempts.saturating_add(1),
    }
}

/// The pause after the given number of attempts.
fn backoff(first: Duration, attempts: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(attempts.saturating_sub(1));
    first.saturating_mul(doubled).min(LONGEST_BACKOFF.max(first))
}

/// Begins an attempt in the place of the record of that version.
pub fn beginning(expected: Option<RecordVersion>, begun: RecordEntry) -> RecordChange {
    match expected {
        None => RecordChange::Insert(begun),
        Some(version) => RecordChange::Replace(version, begun),
    }
}

/// The record to restore when a begin is undone. Only a failure or a crash is restored.
pub fn taken_back_to(found: Option<&Record>) -> Option<Record> {
    found
        .filter(|record| record.state != RecordState::Succeeded && !record.is_forgotten())
        .cloned()
}

/// Takes back the beginning that wrote the version `begun` in the place of `former`. A pause after a failure
/// begins anew.
pub fn undo(begun: RecordVersion, former: Option<Record>) -> RecordChange {
    let Some(former) = former else {
        return RecordChange::Delete(begun);
    };
    RecordChange::Replace(
        begun,
        RecordEntry {
            state: former.state,
            attempts: former.attempts,
            fence_token: begun.fence_token,
            fingerprint: former.fingerprint,
            result: None,
            error: former.error,
            holder: former.holder,
            keep: former.keep_until.since(former.now),
        },
    )
}

/// The record that `undo` brings back, in the place of `begun`.
pub fn before(begun: &Record, undo: RecordChange) -> Option<Record> {
    let RecordChange::Replace(_, entry) = undo else {
        return None;
    };
    let mut record = begun.clone();
    record.state = entry.state;
    record.attempts = entry.attempts;
    record.fingerprint = entry.fingerprint;
    record.error = entry.error;
    record.holder = entry.holder;
    // Its back-off was over when the undone attempt began.
    record.finished_at = Timestamp::EPOCH;
    record.keep_until = begun.now + entry.keep;
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const MICRO: Duration = Duration::from_micros(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn record(state: RecordState) -> Record {
        let mut record = Record::new(Key::new(None, "k").unwrap(), state, NOW);
        record.attempts = 2;
        record.fence_token = 7;
        record.fingerprint = Some(Uuid::nil());
        record.started_at = NOW - 3 * SECOND;
        record.finished_at = NOW - SECOND;
        record.keep_until = NOW + MICRO;
        record
    }

    /// The attempt that runs.
    fn attempt(decision: &Decision) -> Option<u32> {
        match decision {
            Decision::Run { attempt, .. } => Some(*attempt),
            _ => None,
        }
    }

    fn refused(decision: Decision) -> RunError {
        match decision {
            Decision::Refuse(error) => error,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_absent_or_forgotten_runs_as_the_first_attempt() {
        let once = Policy {
            max_attempts: Some(1),
            ..Policy::new(OnCrash::Stop)
        };
        assert_eq!(attempt(&decide(None, &once, None)), Some(1));
        for state in [RecordState::Succeeded, RecordState::Failed] {
            let mut old = record(state);
            old.keep_until = NOW;
            let other = Some(Uuid::max());
            assert_eq!(attempt(&decide(Some(old), &once, other)), Some(1));
        }
    }

    #[test]
    fn another_fingerprint_is_refused_in_every_state() {
        let policy = Policy::new(OnCrash::Retry);
        for state in [
            RecordState::Processing,
            RecordState::Succeeded,
            RecordState::Failed,
        ] {
            let error = refused(decide(Some(record(state)), &policy, Some(Uuid::max())));
            assert!(matches!(error, RunError::KeyReused));
            for same in [None, Some(Uuid::nil())] {
                let decision = decide(Some(record(state)), &policy, same);
                assert!(!matches!(decision, Decision::Refuse(_)), "{decision:?}");
            }
        }
    }

    #[test]
    fn what_failed_runs_again_after_its_backoff_until_its_attempts_are_used_up() {
        let policy = Policy::new(OnCrash::Stop);
        let failed = || Some(record(RecordState::Failed));
        assert_eq!(attempt(&decide(failed(), &policy, None)), Some(3));
        let mut just_now = record(RecordState::Failed);
        just_now.finished_at = NOW + 77 * MICRO;
        assert_eq!(attempt(&decide(Some(just_now), &policy, None)), Some(3));
        let later = Policy {
            backoff: SECOND,
            ..policy
        };
        let error = refused(decide(failed(), &later, None));
        assert!(
            matches!(error, RunError::NotYet { retry_after } if retry_after == SECOND),
            "doubled: {error:?}"
        );
        let never = Policy {
            max_attempts: Some(2),
            ..later
        };
        let error = refused(decide(failed(), &never, None));
        assert!(matches!(error, RunError::GaveUp { attempts: 2 }), "{error:?}");
        assert_eq!(backoff(SECOND, 1), SECOND);
        assert_eq!(backoff(SECOND, u32::MAX), LONGEST_BACKOFF);
        assert_eq!(backoff(LONGEST_BACKOFF * 2, 9), LONGEST_BACKOFF * 2);
    }

    #[test]
    fn who_has_the_lock_finds_a_crash() {
        let crashed = || Some(record(RecordState::Processing));
        let stop = Policy::new(OnCrash::Stop);
        assert!(matches!(decide(crashed(), &stop, None), Decision::Processing(_)));
        let error = refused(decide_inside(crashed(), &stop, None));
        assert!(
            matches!(&error, RunError::InDoubt { attempt: 2, since, .. } if *since == SECOND * 3),
            "{error:?}"
        );
        for on_crash in [OnCrash::Retry, OnCrash::CompleteIn] {
            let again = Policy::new(on_crash);
            assert_eq!(attempt(&decide_inside(crashed(), &again, None)), Some(3));
            let twice = Policy {
                max_attempts: Some(2),
                ..again
            };
            let error = refused(decide_inside(crashed(), &twice, None));
            assert!(matches!(error, RunError::GaveUp { .. }));
        }
        let done = Some(record(RecordState::Succeeded));
        assert!(matches!(decide_inside(done, &stop, None), Decision::Replay(_)));
    }

    /// What has succeeded is replayed, whoever has the lock. The token may be a correction's, too.
    #[test]
    fn a_record_with_a_larger_token_proves_that_the_lease_is_lost() {
        for (state, proves) in [
            (RecordState::Processing, true),
            (RecordState::Failed, true),
            (RecordState::Succeeded, false),
        ] {
            let found = record(state);
            let later = |token| is_later(&found, token);
            assert_eq!(later(found.fence_token - 1), proves, "{state:?}");
            assert!(!later(found.fence_token), "{state:?}: its own");
            assert!(!later(found.fence_token + 1), "{state:?}: of a former lease");
        }
    }

    #[test]
    fn a_beginning_that_is_taken_back_leaves_what_was_there() {
        let former = record(RecordState::Failed);
        assert_eq!(taken_back_to(Some(&former)), Some(former.clone()));
        let mut forgotten = former.clone();
        forgotten.keep_until = NOW;
        for nothing in [None, Some(&record(RecordState::Succeeded)), Some(&forgotten)] {
            assert_eq!(taken_back_to(nothing), None);
        }
        let mut begun = record(RecordState::Processing);
        (begun.attempts, begun.fence_token, begun.fingerprint) = (3, 8, None);
        let undone = before(&begun, undo(begun.version(), Some(former.clone()))).unwrap();
        let kept = |record: &Record| {
            (
                record.state,
                record.attempts,
                record.fingerprint,
                record.keep_until,
            )
        };
        assert_eq!(kept(&undone), kept(&former));
        assert_eq!((undone.fence_token, undone.finished_at), (8, Timestamp::EPOCH));
        assert_eq!(before(&begun, undo(begun.version(), None)), None);
    }
}
