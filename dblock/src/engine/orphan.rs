//! Leases that nobody took: acquires whose outcome is unknown, and whose release is resent until the grant
//! could no longer stand.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::store::{Outcome, StoreError};

const FIRST_RETRY: Duration = Duration::from_millis(50);

/// The longest pause while the store cannot be asked: the key may be blocked.
const SOON: Duration = Duration::from_secs(1);

/// The longest pause while the store answers that there is no such lease.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// An acquire of unknown outcome. It may have been carried out, or may still be: a release that finds
/// nothing proves nothing, so it is repeated until the ttl has passed. A grant that is carried out after
/// that lives at most one ttl.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) lease_id: Uuid,
    pub(super) retry_at: Instant,
    until: Instant,
    pause: Duration,
    /// It was never granted, only promised: no acquire of it is on its way.
    only_promised: bool,
}

impl Orphan {
    pub(super) fn new(lease_id: Uuid, ttl: Duration, now: Instant) -> Self {
        Self {
            lease_id,
            retry_at: now,
            until: now + ttl,
            pause: FIRST_RETRY,
            only_promised: false,
        }
    }

    /// A reservation that is of no use any more. It lapses at `until` by itself.
    pub(super) fn promised(lease_id: Uuid, until: Instant, now: Instant) -> Self {
        Self {
            until,
            only_promised: true,
            ..Self::new(lease_id, Duration::ZERO, now)
        }
    }

    /// Takes the answer to a release sent at `sent_at`. Returns whether the orphan is settled.
    pub(super) fn settle(
        &mut self,
        answer: &Result<Outcome, StoreError>,
        sent_at: Instant,
        now: Instant,
    ) -> bool {
        // A row that carries the lease shows that the acquire was carried out; it cannot be once more. A
        // release sent before the end may have been carried out before the acquire, however late its answer.
        // A withdrawn reservation is an earlier acquire's work, and shows nothing of one on its way.
        let settled = match answer {
            Ok(Outcome::Released { .. }) => true,
            Ok(Outcome::Withdrawn | Outcome::Lost) => self.only_promised,
            _ => false,
        };
        if settled || sent_at >= self.until {
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
    fn a_release_sent_before_the_ttl_has_passed_settles_nothing() {
        let ttl = Duration::from_secs(1);
        let begin = Instant::now();
        let end = begin + ttl;
        let mut orphan = Orphan::new(Uuid::now_v7(), ttl, begin);
        let nothing = Ok(Outcome::Lost);
        assert!(!orphan.settle(&nothing, begin + ttl / 2, end + ttl));
        assert_eq!(orphan.retry_at, end + ttl, "the last release is sent at once");
        assert!(orphan.settle(&nothing, end, end + ttl));
    }

    /// An acquire of unknown outcome may repeat one whose reservation is withdrawn here, and still be on its way.
    #[test]
    fn a_withdrawal_settles_what_was_only_promised() {
        let (now, ttl) = (Instant::now(), Duration::from_secs(9));
        let withdrawn = Ok(Outcome::Withdrawn);
        assert!(!Orphan::new(Uuid::now_v7(), ttl, now).settle(&withdrawn, now, now));
        let promised = || Orphan::promised(Uuid::now_v7(), now + ttl, now);
        assert!(promised().settle(&withdrawn, now, now));
        assert!(promised().settle(&Ok(Outcome::Lost), now, now));
        assert!(!promised().settle(&Ok(Outcome::Skipped), now, now));
    }
}
