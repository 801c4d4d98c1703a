//! The end of an ownership, in one atomic word that bodies and the engine share.
//!
//! The word is either a deadline, or an end with its reason and time. Both sides may look at any moment, and
//! the first to find the deadline past ends the ownership for all. An ended ownership never lives again,
//! because a deadline is moved only while it is still ahead.

use std::sync::atomic::Ordering::{AcqRel, Acquire};

use super::env::Time;
use crate::error::LostReason;
use crate::sync::AtomicU64;

/// Each reason is stored as its number, from 1, in the word's upper four bits. 0 there means: not ended.
const REASONS: [LostReason; 7] = [
    LostReason::Expired,
    LostReason::Gone,
    LostReason::Revoked,
    LostReason::MaxHold,
    LostReason::Released,
    LostReason::Shutdown,
    LostReason::Ticket,
];

const TIME_BITS: u32 = 60;

#[derive(Debug)]
pub(crate) struct End(AtomicU64);

/// The decoded word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// It ends at this time, unless the deadline is moved.
    At(Time),
    /// It ended at this time, for this reason.
    Ended(LostReason, Time),
}

impl End {
    pub(crate) fn at(deadline: Time) -> Self {
        Self(AtomicU64::new(deadline.as_nanos()))
    }

    #[inline]
    pub(crate) fn read(&self) -> Ends {
        decode(self.0.load(Acquire))
    }

    /// Moves the deadline, unless it has passed. A deadline never moves back.
    pub(crate) fn move_to(&self, deadline: Time, now: Time) {
        self.change(|ends| match ends {
            Ends::At(before) if now < before => Some(Ends::At(deadline.max(before))),
            _ => None,
        });
    }

    /// Ends the ownership. Returns whether this call ended it: the first reason stays.
    pub(crate) fn end(&self, reason: LostReason, now: Time) -> bool {
        self.change(|ends| match ends {
            // The deadline may have passed unnoticed.
            Ends::At(deadline) => Some(Ends::Ended(reason, deadline.min(now))),
            Ends::Ended(..) => None,
        })
    }

    /// Ends the ownership if the deadline has passed. Returns whether this call ended it.
    #[inline]
    pub(crate) fn end_if_overdue(&self, reason: LostReason, now: Time) -> bool {
        self.change(|ends| match ends {
            Ends::At(deadline) if now >= deadline => Some(Ends::Ended(reason, deadline)),
            _ => None,
        })
    }

    fn change(&self, next: impl Fn(Ends) -> Option<Ends>) -> bool {
        let mut word = self.0.load(Acquire);
        while let Some(ends) = next(decode(word)) {
            match self.0.compare_exchange(word, encode(ends), AcqRel, Acquire) {
                Ok(_) => return true,
                Err(changed) => word = changed,
            }
        }
        false
    }
}

fn encode(ends: Ends) -> u64 {
    match ends {
        Ends::At(time) => time.as_nanos(),
        Ends::Ended(reason, time) => {
            let number = REASONS.iter().position(|one| *one == reason).unwrap_or(0) + 1;
            (number as u64) << TIME_BITS | time.as_nanos()
        }
    }
}

fn decode(word: u64) -> Ends {
    let time = Time::from_nanos(word & Time::MAX.as_nanos());
    match usize::try_from(word >> TIME_BITS) {
        Ok(number @ 1..) => Ends::Ended(REASONS[number - 1], time),
        _ => Ends::At(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_and_time_comes_back() {
        for reason in REASONS {
            for time in [Time::from_nanos(0), Time::from_nanos(7), Time::MAX] {
                assert_eq!(
                    decode(encode(Ends::Ended(reason, time))),
                    Ends::Ended(reason, time)
                );
                assert_eq!(decode(encode(Ends::At(time))), Ends::At(time));
            }
        }
    }

    #[test]
    fn what_has_ended_stays_so() {
        let at = |nanos| Time::from_nanos(nanos);
        let end = End::at(at(10));
        end.move_to(at(20), at(9));
        assert_eq!(end.read(), Ends::At(at(20)));
        end.move_to(at(15), at(9));
        assert_eq!(end.read(), Ends::At(at(20)), "never back");
        end.move_to(at(30), at(20));
        assert_eq!(end.read(), Ends::At(at(20)), "its time was over");
        assert!(!end.end_if_overdue(LostReason::Expired, at(19)));
        assert!(end.end_if_overdue(LostReason::Expired, at(25)));
        end.move_to(at(40), at(9));
        assert!(!end.end(LostReason::Gone, at(26)));
        assert_eq!(end.read(), Ends::Ended(LostReason::Expired, at(20)));
    }
}

#[cfg(all(test, dblock_loom))]
mod loom_tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;

    use loom::thread;

    use super::*;
    use crate::sync::{AtomicBool, in_every_order};

    fn at(nanos: u64) -> Time {
        Time::from_nanos(nanos)
    }

    /// Runs both at the same time on an end at 10. Returns their results, and the word afterwards.
    fn beside<A: 'static, B: 'static>(
        one: impl FnOnce(&End) -> A + 'static,
        other: impl FnOnce(&End) -> B + 'static,
    ) -> (A, B, Ends) {
        let end = Arc::new(End::at(at(10)));
        let its = Arc::clone(&end);
        let one = thread::spawn(move || one(&its));
        let other = other(&end);
        (one.join().unwrap(), other, end.read())
    }

    #[test]
    fn a_deadline_moves_only_later() {
        in_every_order(|| {
            let ((), (), last) = beside(
                |end| end.move_to(at(20), at(9)),
                |end| {
                    end.move_to(at(30), at(9));
                    assert_eq!(end.read(), Ends::At(at(30)));
                },
            );
            assert_eq!(last, Ends::At(at(30)));
        });
    }

    #[test]
    fn a_deadline_moves_or_ends() {
        in_every_order(|| {
            let ((), ended, last) = beside(
                |end| end.move_to(at(20), at(9)),
                |end| end.end_if_overdue(LostReason::Expired, at(15)),
            );
            let expected = if ended {
                Ends::Ended(LostReason::Expired, at(10))
            } else {
                Ends::At(at(20))
            };
            assert_eq!(last, expected);
        });
    }

    #[test]
    fn what_has_ended_stays_so_for_every_reader() {
        in_every_order(|| {
            let end = Arc::new(End::at(at(10)));
            let spawn = |does: fn(&End)| {
                let its = Arc::clone(&end);
                thread::spawn(move || does(&its))
            };
            let moves = spawn(|end| end.move_to(at(20), at(9)));
            let ends = spawn(|end| assert!(end.end(LostReason::Gone, at(5))));
            let seen = [end.read(), end.read(), end.read()];
            moves.join().unwrap();
            ends.join().unwrap();
            // A reader may miss some of these states, and never sees an earlier one again.
            let order = [
                Ends::At(at(10)),
                Ends::At(at(20)),
                Ends::Ended(LostReason::Gone, at(5)),
            ];
            let place = |seen: &Ends| order.iter().position(|ends| ends == seen).unwrap();
            assert!(seen.is_sorted_by_key(place));
            assert_eq!(end.read(), order[2]);
        });
    }

    #[test]
    fn one_ends_it_and_its_reason_stays() {
        in_every_order(|| {
            let (gone, expired, last) = beside(
                |end| end.end(LostReason::Gone, at(9)),
                |end| end.end_if_overdue(LostReason::Expired, at(11)),
            );
            assert_ne!(gone, expired);
            let expected = if gone {
                Ends::Ended(LostReason::Gone, at(9))
            } else {
                Ends::Ended(LostReason::Expired, at(10))
            };
            assert_eq!(last, expected);
        });
    }

    #[test]
    fn whoever_sees_a_change_sees_what_came_before_it() {
        for change in [
            |end: &End| _ = end.end(LostReason::Gone, at(9)),
            |end: &End| end.move_to(at(20), at(9)),
        ] {
            for sees in [
                |end: &End| end.read() != Ends::At(at(10)),
                // It had ended before, or its deadline was moved.
                |end: &End| !end.end_if_overdue(LostReason::Expired, at(15)),
            ] {
                in_every_order(move || {
                    let before = Arc::new(AtomicBool::new(false));
                    let its = Arc::clone(&before);
                    beside(
                        move |end| {
                            its.store(true, Relaxed);
                            change(end);
                        },
                        move |end| assert!(!sees(end) || before.load(Relaxed)),
                    );
                });
            }
        }
    }
}
