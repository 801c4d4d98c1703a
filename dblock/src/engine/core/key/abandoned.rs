//! Abandoned acquires: leases that nobody takes any more, which are released by their id.

use std::time::Duration;

use uuid::Uuid;

use crate::engine::core::time::Time;
use crate::store::{Outcome, StoreError};

const FIRST_RETRY: Duration = Duration::from_millis(50);

/// The longest pause while the store cannot be asked: the key may be blocked.
const SOON: Duration = Duration::from_secs(1);

/// The longest pause while the store answers that there is no such lease.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// An acquire of unknown outcome may have been carried out, or may still be: a release that finds nothing proves
/// nothing, so it is repeated until the ttl has passed. A grant that is carried out after that lives at most one ttl.
#[derive(Debug)]
pub(super) struct Abandoned {
    pub(super) lease_id: Uuid,
    pub(super) retry_at: Time,
    until: Time,
    pause: Duration,
    /// All its acquires were answered: none of them can take the key any more.
    answered: bool,
}

impl Abandoned {
    pub(super) fn new(lease_id: Uuid, ttl: Duration, now: Time) -> Self {
        Self {
            lease_id,
            retry_at: now,
            until: now + ttl,
            pause: FIRST_RETRY,
            answered: false,
        }
    }

    /// A lease whose acquires were all answered: a successor, or one that has the row. It ends by itself at `until`.
    pub(super) fn answered(lease_id: Uuid, until: Time, now: Time) -> Self {
        Self {
            until,
            answered: true,
            ..Self::new(lease_id, Duration::ZERO, now)
        }
    }

    /// The row was passed on to it: its release is due at once.
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
        // A row that carries the lease shows that the acquire was carried out; it cannot be once more. A
        // release sent before the end may have been carried out before the acquire, however late its answer.
        // A withdrawn successor is an earlier acquire's work, and shows nothing of one on its way.
        let done = match answer {
            Ok(Outcome::Released { .. }) => true,
            Ok(Outcome::Withdrawn | Outcome::Lost) => self.answered,
            _ => false,
        };
        if done || sent_at >= self.until {
            return true;
        }
        self.retry_at = (now + self.pause).min(self.until.max(now));
        let longest = if matches!(answer, Ok(Outcome::Lost | Outcome::Withdrawn)) {
            LONGEST_RETRY
        } else {
            SOON
        };
        self.pause = (self.pause * 2).min(longest);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The acquire may have been carried out between the release and its answer.
    #[test]
    fn a_release_sent_before_the_ttl_has_passed_proves_nothing() {
        let ttl = Duration::from_secs(1);
        let begin = Time::from_nanos(0);
        let end = begin + ttl;
        let mut abandoned = Abandoned::new(Uuid::now_v7(), ttl, begin);
        let nothing = Ok(Outcome::Lost);
        assert!(!abandoned.release_answered(&nothing, begin + ttl / 2, end + ttl));
        assert_eq!(abandoned.retry_at, end + ttl, "the last release is sent at once");
        assert!(abandoned.release_answered(&nothing, end, end + ttl));
    }

    /// An acquire of unknown outcome may repeat one whose place is withdrawn here, and still be on its way.
    #[test]
    fn a_withdrawal_ends_what_was_only_a_successor() {
        let (now, ttl) = (Time::from_nanos(0), Duration::from_secs(9));
        let withdrawn = Ok(Outcome::Withdrawn);
        assert!(!Abandoned::new(Uuid::now_v7(), ttl, now).release_answered(&withdrawn, now, now));
        let known = || Abandoned::answered(Uuid::now_v7(), now + ttl, now);
        assert!(known().release_answered(&withdrawn, now, now));
        assert!(known().release_answered(&Ok(Outcome::Lost), now, now));
        assert!(!known().release_answered(&Ok(Outcome::Skipped), now, now));
    }
}
