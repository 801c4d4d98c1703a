//! Abandoned acquires: no caller of this process has their leases, but the row may name them. They are
//! released by their id.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::machine::env::{Time, on_any_clock};
use crate::store::{Outcome, RecordChange, StoreError};

const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Longest pause between two releases while the store fails: the key may be blocked.
const SOON: Duration = Duration::from_secs(1);

/// Longest pause between two releases while the store answers that nothing is left of the lease.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// An acquire of unknown outcome may have been carried out, or may still be. A release that finds nothing
/// therefore proves nothing, and is repeated until the ttl has passed. An acquire that is carried out even
/// later expires after one ttl.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) lease_id: Uuid,
    pub(super) retry_at: Time,
    /// A run began with the acquire, or may have: the release takes it back.
    pub(super) undo: Option<Arc<RecordChange>>,
    /// A release that is sent before this and finds nothing proves nothing.
    until: Time,
    /// Every lease that was granted before `until` has expired by then.
    pub(super) over_at: Time,
    pause: Duration,
    /// All its acquires were answered: none of them can be carried out later.
    answered: bool,
    /// An earlier acquire was answered `Queued`: what a release finds may come from that one.
    queued: bool,
}

impl Abandoned {
    pub(super) fn new(lease_id: Uuid, ttl: Duration, now: Time) -> Self {
        let ttl = on_any_clock(ttl);
        Self {
            lease_id,
            retry_at: now,
            undo: None,
            until: now + ttl,
            over_at: now + ttl + ttl,
            pause: FIRST_RETRY,
            answered: false,
            queued: false,
        }
    }

    /// An acquire of unknown outcome, by a lease that already has a place in the queue.
    pub(super) fn with_place(lease_id: Uuid, ttl: Duration, now: Time) -> Self {
        Self {
            queued: true,
            ..Self::new(lease_id, ttl, now)
        }
    }

    /// The lease of a ticket with this ttl that nobody has. No request can make the row name it after `until`.
    pub(super) fn of_ticket(lease_id: Uuid, until: Time, ttl: Duration, now: Time) -> Self {
        Self {
            until,
            over_at: until + on_any_clock(ttl),
            ..Self::new(lease_id, ttl, now)
        }
    }

    /// A lease whose acquires were all answered: a successor, or a lease that the row names. It ends by
    /// itself at `until`.
    pub(super) fn all_answered(lease_id: Uuid, until: Time, now: Time) -> Self {
        Self {
            until,
            over_at: until,
            answered: true,
            ..Self::new(lease_id, Duration::ZERO, now)
        }
    }

    /// The row was passed on to the lease: its release is due at once.
    pub(super) fn passed_on(&mut self, now: Time) {
        self.retry_at = now;
    }

    /// Takes the answer to a release sent at `sent_at`. Returns whether nothing is left to do.
    pub(super) fn release_answered(
        &mut self,
        answer: &Result<Outcome, StoreError>,
        sent_at: Time,
        now: Time,
    ) -> bool {
        // A row that names the lease proves that an acquire was carried out, and none is carried out twice.
        // With `queued` this proves nothing: an earlier acquire may have done it, and the last one may still
        // make the lease a successor. A release that was sent before `until` may have come before the
        // acquire, however late its answer.
        let done = match answer {
            Ok(Outcome::Released(_)) => self.answered || !self.queued,
            Ok(Outcome::Withdrawn | Outcome::Lost) => self.answered,
            _ => false,
        };
        let carried_out = matches!(
            answer,
            Ok(Outcome::Released(_) | Outcome::Withdrawn | Outcome::Lost)
        );
        if done || sent_at >= self.until && carried_out || sent_at >= self.over_at {
            return true;
        }
        let longest = if carried_out { LONGEST_RETRY } else { SOON };
        // The row was locked for a moment. The row stays busy for nobody until the next release, so that is
        // sent sooner.
        let sooner = if matches!(answer, Ok(Outcome::Skipped)) {
            10
        } else {
            1
        };
        let next = now + self.pause.min(longest) / sooner;
        self.retry_at = if sent_at < self.until {
            next.min(self.until.max(now))
        } else {
            next
        };
        self.pause = (self.pause * 2).min(longest);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Released, StoreErrorKind};

    /// The acquire may be carried out between the release and its answer.
    #[test]
    fn a_release_sent_before_the_ttl_has_passed_proves_nothing() {
        let ttl = Duration::from_secs(1);
        let begin = Time::from_nanos(0);
        // On the store's clock, whichever of the two runs faster.
        let end = begin + on_any_clock(ttl);
        let mut abandoned = Abandoned::new(Uuid::now_v7(), ttl, begin);
        let nothing = Ok(Outcome::Lost);
        assert!(!abandoned.release_answered(&nothing, begin + ttl / 2, end + ttl));
        assert_eq!(abandoned.retry_at, end + ttl, "the last release is sent at once");
        assert!(abandoned.release_answered(&nothing, end, end + ttl));
    }

    /// An acquire of unknown outcome may repeat one whose place is withdrawn here, and may still be on its
    /// way.
    #[test]
    fn a_withdrawal_ends_what_was_only_a_successor() {
        let (now, ttl) = (Time::from_nanos(0), Duration::from_secs(9));
        let withdrawn = Ok(Outcome::Withdrawn);
        assert!(!Abandoned::new(Uuid::now_v7(), ttl, now).release_answered(&withdrawn, now, now));
        let known = || Abandoned::all_answered(Uuid::now_v7(), now + ttl, now);
        assert!(known().release_answered(&withdrawn, now, now));
        assert!(known().release_answered(&Ok(Outcome::Lost), now, now));
        assert!(!known().release_answered(&Ok(Outcome::Skipped), now, now));
    }

    /// The row was passed on because of an earlier acquire: the one of unknown outcome may still be carried
    /// out.
    #[test]
    fn a_release_of_a_queued_lease_proves_nothing_about_a_later_acquire() {
        let (now, ttl) = (Time::from_nanos(0), Duration::from_secs(9));
        let released = Ok(Outcome::Released(Released::Freed));
        assert!(!Abandoned::with_place(Uuid::now_v7(), ttl, now).release_answered(&released, now, now));
        assert!(Abandoned::with_place(Uuid::now_v7(), ttl, now).release_answered(
            &released,
            now + on_any_clock(ttl),
            now + on_any_clock(ttl)
        ));
        assert!(Abandoned::new(Uuid::now_v7(), ttl, now).release_answered(&released, now, now));
    }

    /// Only a last release after the ttl proves anything, so it must be carried out.
    #[test]
    fn a_last_release_that_fails_is_sent_again() {
        let (begin, ttl) = (Time::from_nanos(0), Duration::from_secs(9));
        let mut abandoned = Abandoned::new(Uuid::now_v7(), ttl, begin);
        let error = StoreError::new(crate::store::StoreErrorKind::Unreachable, "away");
        let end = begin + on_any_clock(ttl);
        assert!(!abandoned.release_answered(&Err(error.clone()), end, end));
        assert!(abandoned.retry_at > end);
        assert!(!abandoned.release_answered(&Ok(Outcome::Skipped), end, end));
        assert!(
            abandoned.release_answered(&Err(error), end + on_any_clock(ttl), end + on_any_clock(ttl)),
            "it has run out by itself"
        );
    }

    /// Else the row would be busy for longer than its lease lasts.
    #[test]
    fn the_last_release_comes_when_the_lease_has_ended() {
        let begin = Time::from_nanos(0);
        let until = begin + Duration::from_millis(777);
        let mut answered = Abandoned::all_answered(Uuid::nil(), until, begin);
        let failed = Err(StoreError::new(StoreErrorKind::Unreachable, "no"));
        while answered.retry_at < until {
            let now = answered.retry_at;
            assert!(!answered.release_answered(&failed, now, now));
        }
        assert_eq!(answered.retry_at, until);
        assert!(answered.release_answered(&failed, until, until));
    }
}
