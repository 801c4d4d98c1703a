//! The next grant of a key that another process has, when the store has promised it to this one.
//!
//! An acquire that finds the key busy reserves it: nobody else is granted it while the reservation stands. The
//! process that leaves tells who waits, before its release costs a commit. Whoever has the reservation comes in at
//! once, with the token that was reserved, and the row follows as after a hand-over inside the process. What
//! is heard is never needed: the acquire is repeated, and is granted once the row is free.
//!
//! Why that is safe: the reservation was written before it was answered, and bars everybody else until it
//! lapses by the store's clock; here it lapses earlier, as a lease does. It is behind one lease, of
//! which nothing but its own process can say that it is over, and who says that never comes in with it again.

use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use crate::options;
use crate::store;

/// Who comes in by a reservation must have it written in this time at least.
const SHORTEST: Duration = Duration::from_millis(100);

/// A lease to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NewLease {
    /// What only this process knows until it leaves. Then it is told, as the proof that it has left.
    pub(super) word: Uuid,
}

impl NewLease {
    pub(super) fn new() -> Self {
        Self { word: Uuid::new_v4() }
    }

    /// The `lease_id`: a digest of the word, so that who reads the row cannot say the word.
    pub(super) fn id(self) -> Uuid {
        Uuid::new_v5(&DIGEST, self.word.as_bytes())
    }
}

/// Keeps these digests apart from all others.
const DIGEST: Uuid = Uuid::from_u128(0x6db3_1f0a_94c2_4e7f_8d15_b0a7_2c9e_5f61);

/// The next grant, as promised.
#[derive(Debug, Clone)]
pub(super) struct Reservation {
    pub(super) lease: NewLease,
    pub(super) fence_token: i64,
    pub(super) spare_tokens: u32,
    /// When it lapses in the store at the earliest, on our clock.
    pub(super) until: Instant,
    /// By how much it ends earlier here.
    pub(super) margin: Duration,
    /// The lease that must be over first.
    behind: Uuid,
}

/// What is known of the next grant of a key.
#[derive(Debug, Default)]
pub(super) struct Next {
    reservation: Option<Reservation>,
    /// A lease of another process in which nobody is inside any more, as heard last.
    left: Option<Uuid>,
}

impl Next {
    /// The lease to ask with: a reservation is for one lease, so who has it repeats its request.
    pub(super) fn lease(&self) -> NewLease {
        self.reservation
            .as_ref()
            .map_or_else(NewLease::new, |reservation| reservation.lease)
    }

    /// The store's answer to an acquire of `lease` sent at `sent_at`.
    pub(super) fn promised(&mut self, lease: NewLease, sent_at: Instant, said: &store::Reservation) {
        self.reservation = Some(Reservation {
            lease,
            fence_token: said.fence_token,
            spare_tokens: said.spare_tokens,
            until: sent_at + said.remaining,
            margin: options::margin(said.remaining),
            behind: said.behind,
        });
    }

    /// Nobody is inside with this lease of another process any more.
    pub(super) fn heard(&mut self, left: NewLease) {
        self.left = Some(left.id());
    }

    /// Whether the reservation is behind this lease.
    pub(super) fn is_behind(&self, lease_id: Uuid) -> bool {
        self.reservation
            .as_ref()
            .is_some_and(|reservation| reservation.behind == lease_id)
    }

    /// The reservation, if who has it may come in now.
    pub(super) fn due(&self, now: Instant) -> Option<&Reservation> {
        self.reservation.as_ref().filter(|reservation| {
            self.left == Some(reservation.behind) && now + reservation.margin + SHORTEST < reservation.until
        })
    }

    /// It is used, or of no use any more.
    pub(super) fn take(&mut self) -> Option<Reservation> {
        self.reservation.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(behind: Uuid) -> store::Reservation {
        store::Reservation {
            behind,
            fence_token: 7,
            spare_tokens: 3,
            remaining: Duration::from_secs(3),
        }
    }

    #[test]
    fn it_is_due_when_its_predecessor_has_left_and_while_it_stands() {
        let (mine, theirs, now) = (NewLease::new(), NewLease::new(), Instant::now());
        let mut next = Next::default();
        next.promised(mine, now, &said(theirs.id()));
        assert!(next.due(now).is_none());
        next.heard(NewLease::new());
        assert!(next.due(now).is_none(), "another lease is over");
        next.heard(NewLease { word: theirs.id() });
        assert!(next.due(now).is_none(), "said by somebody who has read the row");
        next.heard(theirs);
        assert!(next.due(now).is_some());
        assert_eq!(next.lease(), mine, "asked for again with the same lease");
        // 3 s, less the margin of 150 ms and the shortest time that is of use.
        assert!(next.due(now + Duration::from_millis(2_749)).is_some());
        assert!(next.due(now + Duration::from_millis(2_750)).is_none());
        assert!(next.take().is_some() && next.due(now).is_none());
        assert_ne!(next.lease(), mine);
    }

    #[test]
    fn who_is_told_before_the_answer_comes_in_with_the_answer() {
        let (theirs, now) = (NewLease::new(), Instant::now());
        let mut next = Next::default();
        next.heard(theirs);
        next.promised(NewLease::new(), now, &said(theirs.id()));
        assert!(next.due(now).is_some());
    }
}
