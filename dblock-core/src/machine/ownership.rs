//! One owner's share of a lease: its fixed data, and its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use uuid::Uuid;

use super::call::Call;
use super::end::{End, Ends};
use super::env::Time;
use crate::error::LostReason;
use crate::key::Key;
use crate::sync::{AtomicBool, AtomicU64};

/// One owner's share of a lease. After a local hand-over the same lease has a new ownership, with a larger
/// token.
#[derive(Debug)]
pub struct Ownership {
    pub key: Key,
    pub lease_id: Uuid,
    pub fence_token: i64,
    pub call: Arc<Call>,
    /// When the owner entered; for a grant by the store, when the request was sent.
    pub since: Time,
    /// `max_hold` ends it here, whatever is renewed.
    pub max_hold_until: Option<Time>,
    /// The row stays busy until here, even when the body has ended before.
    pub hold_min_until: Option<Time>,
    /// The grant has made the change of the caller's [`Begin`](super::call::Begin).
    pub begun: bool,
    /// Tells those apart who share one lease.
    pub(super) seat: usize,
    end: End,
    revoked: AtomicBool,
    /// One of the owner's calls runs the key's `run_once` body. The core stores this flag and never reads it.
    pub in_run: AtomicBool,
    /// The mark of a transaction of the owner's that ends with a check of the lease; 0 without one. The core stores it
    /// and never reads it.
    pub in_transaction: AtomicU64,
    /// How many tasks wait for its end or its revocation. The core stores it and never reads it.
    pub watchers: AtomicU64,
}

impl Ownership {
    /// `entered` is when the owner enters: `max_hold` and `hold_min` count from there. `deadline` is the
    /// lease's.
    pub(super) fn new(
        key: Key,
        call: Arc<Call>,
        lease_id: Uuid,
        fence_token: i64,
        entered: Time,
        deadline: Time,
    ) -> Self {
        let max_hold_until = call.options.max_hold.map(|length| entered + length);
        Self {
            key,
            lease_id,
            fence_token,
            since: entered,
            max_hold_until,
            hold_min_until: call.options.hold_min.map(|length| entered + length),
            begun: false,
            seat: 0,
            end: End::at(max_hold_until.map_or(deadline, |end| end.min(deadline))),
            revoked: AtomicBool::new(false),
            in_run: AtomicBool::new(false),
            in_transaction: AtomicU64::new(0),
            watchers: AtomicU64::new(0),
            call,
        }
    }

    /// Ends it if its deadline has passed. Returns the reason why it has ended, if it has; the first one stays. The
    /// `bool` is true for the call that ended it. That caller must wake the others.
    #[inline]
    pub fn end_if_over(&self, now: Time) -> (Option<LostReason>, bool) {
        let reason = match self.max_hold_until {
            Some(end) if now >= end => LostReason::MaxHold,
            _ if self.is_revoked() => LostReason::Revoked,
            _ => LostReason::Expired,
        };
        let first = self.end.end_if_overdue(reason, now);
        match self.end.read() {
            Ends::Ended(reason, _) => (Some(reason), first),
            Ends::At(_) => (None, false),
        }
    }

    /// Moves the end to a later deadline of the lease, if it has not ended.
    pub(super) fn move_deadline(&self, deadline: Time, now: Time) {
        let deadline = self.max_hold_until.map_or(deadline, |end| end.min(deadline));
        self.end.move_to(deadline, now);
    }

    /// Ends it. Returns whether this call ended it.
    pub fn end(&self, reason: LostReason, now: Time) -> bool {
        self.end.end(reason, now)
    }

    /// When it ends unless it is extended; `None` when it has.
    #[inline]
    pub fn deadline(&self) -> Option<Time> {
        match self.end.read() {
            Ends::At(deadline) => Some(deadline),
            Ends::Ended(..) => None,
        }
    }

    /// The reason why it has ended, if that has been noticed.
    pub(super) fn ended(&self) -> Option<LostReason> {
        match self.end.read() {
            Ends::Ended(reason, _) => Some(reason),
            Ends::At(_) => None,
        }
    }

    /// How long the owner has, or had, the lock.
    #[inline]
    pub fn held_for(&self, now: Time) -> Duration {
        match self.end.read() {
            Ends::At(_) => now.since(self.since),
            Ends::Ended(_, at) => at.since(self.since),
        }
    }

    pub(super) fn mark_revoked(&self) {
        self.revoked.store(true, Ordering::Release);
    }

    #[inline]
    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockOptions;
    use crate::machine::call::Takes;

    pub(super) fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// An ownership that ends at 10.
    pub(super) fn ownership(options: LockOptions) -> Ownership {
        let call = Call {
            owner: Uuid::nil(),
            holder: "h".into(),
            options,
            since: at(0),
            deadline: None,
            nested: false,
            takes: Takes::No,
            begin: None,
            tells_wait: None,
        };
        let key = Key::new(None, "k").unwrap();
        Ownership::new(key, Arc::new(call), Uuid::nil(), 1, at(0), at(10))
    }

    #[cfg(not(dblock_loom))]
    #[test]
    fn the_first_end_gives_the_reason() {
        let of_max_hold = |nanos| ownership(LockOptions::new().max_hold(Duration::from_nanos(nanos)));
        assert_eq!(
            of_max_hold(5).end_if_over(at(5)),
            (Some(LostReason::MaxHold), true)
        );
        assert_eq!(
            of_max_hold(20).end_if_over(at(11)),
            (Some(LostReason::Expired), true)
        );
        let revoked = ownership(LockOptions::new());
        revoked.mark_revoked();
        assert_eq!(revoked.end_if_over(at(9)), (None, false));
        assert_eq!(revoked.end_if_over(at(11)), (Some(LostReason::Revoked), true));
        assert_eq!(revoked.end_if_over(at(12)), (Some(LostReason::Revoked), false));
    }

    #[cfg(not(dblock_loom))]
    #[test]
    fn it_is_held_until_its_end() {
        let ownership = ownership(LockOptions::new());
        assert_eq!(ownership.held_for(at(7)), Duration::from_nanos(7));
        assert!(ownership.end(LostReason::Gone, at(9)));
        assert_eq!(ownership.held_for(at(20)), Duration::from_nanos(9));
    }
}

#[cfg(all(test, dblock_loom))]
mod loom_tests {
    use loom::thread;

    use super::tests::{at, ownership};
    use super::*;
    use crate::LockOptions;
    use crate::sync::in_every_order;

    /// Runs a closure on a thread of its own.
    fn spawn<T: 'static>(
        ownership: &Arc<Ownership>,
        does: impl FnOnce(&Ownership) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let ownership = Arc::clone(ownership);
        thread::spawn(move || does(&ownership))
    }

    #[test]
    fn one_tells_of_a_loss_and_all_name_its_reason() {
        in_every_order(|| {
            let ownership = Arc::new(ownership(LockOptions::new()));
            let body = spawn(&ownership, |own| own.end_if_over(at(11)));
            let other_body = spawn(&ownership, |own| own.end_if_over(at(12)));
            let gone = ownership.end(LostReason::Gone, at(9));
            let (reason, first) = body.join().unwrap();
            let (other_reason, other_first) = other_body.join().unwrap();
            assert_eq!([gone, first, other_first].map(u8::from).iter().sum::<u8>(), 1);
            let expected = if gone {
                LostReason::Gone
            } else {
                LostReason::Expired
            };
            assert_eq!([reason, other_reason, ownership.ended()], [Some(expected); 3]);
        });
    }

    #[test]
    fn whoever_sees_the_revocation_sees_the_deadline_that_came_with_it() {
        in_every_order(|| {
            let ownership = Arc::new(ownership(LockOptions::new()));
            let extended = spawn(&ownership, |own| {
                own.move_deadline(at(20), at(9));
                own.mark_revoked();
            });
            if ownership.is_revoked() {
                assert_eq!(ownership.deadline(), Some(at(20)));
            }
            extended.join().unwrap();
            assert_eq!(ownership.end_if_over(at(20)), (Some(LostReason::Revoked), true));
        });
    }
}
