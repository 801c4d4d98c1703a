//! Sequences of events, and what the machine wants done after each.

mod begun;
mod transaction;

use super::super::ownership::Call;
use std::time::Duration;

use super::*;
use crate::store::{Holder, Request, StoreErrorKind};

const TTL: Duration = Duration::from_secs(9);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

/// Numbers instead of random values.
struct Numbers(u128);

impl super::super::env::Random for Numbers {
    fn lease_id(&mut self) -> Uuid {
        self.0 += 1;
        Uuid::from_u128(self.0)
    }

    fn fraction(&mut self) -> f64 {
        0.5
    }
}

/// One machine, and its clock.
struct Process {
    machine: Machine<&'static str>,
    now: Time,
    listening: bool,
    numbers: Numbers,
    ownership: Option<Arc<Ownership>>,
}

fn call(ttl: Duration) -> Call {
    Call {
        owner: Uuid::now_v7(),
        holder: "h".into(),
        ttl,
        renew: true,
        on_lost: crate::OnLost::Cancel,
        max_hold: None,
        hold_min: None,
        nested: false,
        site: crate::meter::Site::default(),
        begin: None,
    }
}

impl Process {
    fn new() -> Self {
        Self {
            machine: Machine::new(Key::new(None, "k").unwrap()),
            now: Time::from_nanos(0) + 100 * SECOND,
            listening: true,
            numbers: Numbers(0),
            ownership: None,
        }
    }

    /// A step. Returns its output, and the reply to each caller.
    fn step(&mut self, event: Event<&'static str>) -> (Out<&'static str>, Vec<String>) {
        let mut env = Env {
            now: self.now,
            wake_ups: true,
            listening: self.listening,
            hand_over: true,
            random: &mut self.numbers,
        };
        let mut out = self.machine.step(&mut env, event);
        let mut said = Vec::new();
        for reply in out.replies.drain(..) {
            said.push(match reply {
                Reply::Granted(waiter, ownership) => {
                    let text = format!("{} has {}", waiter.ticket, ownership.fence_token);
                    self.ownership = Some(ownership);
                    text
                }
                Reply::Refused(waiter, refusal) => {
                    let why = match refusal {
                        Refusal::Busy(_) => "busy",
                        Refusal::RowLocked => "row locked",
                        Refusal::NoAnswer => "no answer",
                        Refusal::Store(_) => "store",
                        Refusal::Shutdown => "shutdown",
                    };
                    format!("{} refused: {why}", waiter.ticket)
                }
                Reply::Confirmed(ticket) => format!("{ticket} confirmed"),
                Reply::Lost(ticket, reason) => format!("{ticket} lost: {reason:?}"),
                Reply::Unconfirmed(ticket, _) => format!("{ticket} unconfirmed"),
            });
        }
        (out, said)
    }

    fn says(&mut self, event: Event<&'static str>) -> Vec<String> {
        self.step(event).1
    }

    fn wants(&mut self, ticket: &'static str, wait: Option<Duration>) -> u64 {
        self.wants_with(ticket, wait, call(TTL))
    }

    fn wants_with(&mut self, ticket: &'static str, wait: Option<Duration>, call: Call) -> u64 {
        let waiter = Waiter {
            call,
            since: self.now,
            deadline: Some(self.now + wait.unwrap_or(5 * SECOND)),
            non_blocking: wait.is_none(),
            ticket,
        };
        let (out, said) = self.step(Event::Acquire(Box::new(waiter)));
        assert!(said.is_empty(), "{said:?}");
        out.waiter
    }

    fn sends(&mut self) -> Option<Request> {
        self.step(Event::Send(&[Kind::Extend, Kind::Release, Kind::Acquire]))
            .0
            .request
    }

    fn answered(&mut self, outcome: Outcome) -> Vec<String> {
        self.says(Event::Answer(Ok(outcome)))
    }

    fn passes(&mut self, time: Duration) -> Vec<String> {
        self.now = self.now + time;
        self.says(Event::Time)
    }

    fn leaves(&mut self, ticket: &'static str, in_order: bool) -> Vec<String> {
        let ownership = self.ownership.clone().unwrap();
        let deadline = self.now + 5 * SECOND;
        self.says(Event::Leave {
            ownership,
            in_order,
            confirm: Some(Confirm { ticket, deadline }),
        })
    }

    /// A process whose first caller holds the lock.
    fn holding(ticket: &'static str) -> Self {
        let mut process = Self::new();
        process.wants(ticket, Some(5 * SECOND));
        process.sends().unwrap();
        assert_eq!(process.answered(granted(7)), [format!("{ticket} has 7")]);
        process
    }

    /// A process whose caller waits and is next, behind the holder with token 7.
    fn queued() -> (Self, Uuid) {
        let mut process = Self::new();
        process.wants("a", Some(60 * SECOND));
        let lease = process.sends().unwrap().lease_id;
        assert!(process.answered(queued_behind(7)).is_empty());
        (process, lease)
    }
}

fn granted(fence_token: i64) -> Outcome {
    Outcome::Granted {
        fence_token,
        remaining: TTL,
        taken_over: None,
        wanted: false,
        recorded: false,
    }
}

fn extended() -> Outcome {
    Outcome::Extended {
        remaining: TTL,
        revoked: false,
        wanted: false,
    }
}

fn released() -> Outcome {
    Outcome::Released {
        freed: true,
        passed_on: false,
    }
}

fn holder(fence_token: i64) -> Holder {
    Holder {
        owner: Uuid::nil(),
        name: "other".into(),
        fence_token,
        remaining: Some(20 * SECOND),
    }
}

fn queued_behind(fence_token: i64) -> Outcome {
    Outcome::Queued {
        holder: holder(fence_token),
        next_ttl: 3 * SECOND,
    }
}

fn unknown() -> StoreError {
    StoreError::new(StoreErrorKind::Interrupted, "nobody knows")
}

#[test]
fn a_lock_is_acquired_and_released_with_a_request_each() {
    let mut a = Process::new();
    a.wants("a", None);
    assert!(
        matches!(a.sends().unwrap().action, Action::Acquire(ask) if ask.queue.is_none() && ask.wanted_for.is_none())
    );
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
    assert!(a.leaves("a", true).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(released()), ["a confirmed"]);
    assert!(a.machine.is_idle());
}

#[test]
fn the_next_caller_of_the_process_enters_without_the_store() {
    let mut a = Process::holding("a");
    a.wants("b", Some(5 * SECOND));
    let former = a.ownership.clone().unwrap();
    // It was alone, so its acquire kept no tokens free: the lock goes through the store.
    assert!(a.leaves("a", true).is_empty());
    assert_eq!(former.ended(), Some(LostReason::Released));
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(released()), ["a confirmed"]);
    a.wants("c", Some(5 * SECOND));
    assert!(matches!(a.sends().unwrap().action, Action::Acquire(ask) if ask.spare_tokens > 0));
    assert_eq!(a.answered(granted(20)), ["b has 20"]);
    assert_eq!(a.leaves("b", true), ["b confirmed", "c has 21"]);
    // The row is written later.
    assert!(a.passes(60 * MS).is_empty());
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert_eq!(extend.handed_over.unwrap().fence_token, 21);
    assert!(a.answered(extended()).is_empty());
    assert_eq!(a.sends(), None);
}

#[test]
fn a_body_that_did_not_return_hands_nothing_over() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.wants("b", Some(5 * SECOND));
    a.sends().unwrap();
    a.answered(granted(7));
    assert!(a.leaves("a", false).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

#[test]
fn another_ttl_is_confirmed_when_the_row_has_it_and_renewed_from_then_on() {
    let mut a = Process::holding("a");
    let ownership = a.ownership.clone().unwrap();
    let deadline = a.now + 5 * SECOND;
    let confirm = Confirm {
        ticket: "extended",
        deadline,
    };
    assert!(
        a.says(Event::SetTtl(ownership.clone(), 2 * TTL, confirm))
            .is_empty()
    );
    let ttl = |request: Request| match request.action {
        Action::Extend(extend) => extend.ttl,
        other => panic!("{other:?}"),
    };
    assert_eq!(a.sends().map(ttl), Some(2 * TTL));
    // A re-entry would be confirmed from memory; this is not.
    assert!(a.answered(Outcome::Skipped).is_empty());
    a.passes(SECOND);
    assert_eq!(a.sends().map(ttl), Some(2 * TTL));
    let sent_at = a.now;
    let outcome = Outcome::Extended {
        remaining: 2 * TTL,
        revoked: false,
        wanted: false,
    };
    assert_eq!(a.answered(outcome), ["extended confirmed"]);
    assert_eq!(ownership.deadline(), Some((sent_at + 2 * TTL).before(TTL / 10)));
    assert_eq!(a.sends(), None);
    a.passes(TTL);
    assert_eq!(a.sends().map(ttl), Some(2 * TTL), "the renewal");
}

#[test]
fn a_caller_enters_on_a_wake_up_with_a_larger_token() {
    let (mut a, lease) = Process::queued();
    assert!(a.says(Event::PassedOn(lease, 7)).is_empty(), "an old wake-up");
    assert_eq!(a.says(Event::PassedOn(lease, 8)), ["a has 8"]);
    // An extension follows at once and names the owner.
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert_eq!((extend.ttl, extend.handed_over.unwrap().fence_token), (TTL, 8));
    let before = a.ownership.as_ref().unwrap().deadline().unwrap();
    assert_eq!(before.since(a.now), 2850 * MS);
    a.answered(extended());
    let after = a.ownership.as_ref().unwrap().deadline().unwrap();
    assert_eq!(after.since(a.now), 8550 * MS);
}

/// The ask may find the lease expired and queue it again, behind the owner that has the key now.
#[test]
fn a_wake_up_waits_for_the_ask_on_its_way() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    assert_eq!(
        a.sends().unwrap().lease_id,
        lease,
        "asked again with the same lease"
    );
    assert!(a.says(Event::PassedOn(lease, 8)).is_empty());
    assert!(a.answered(queued_behind(9)).is_empty(), "8 is over");
    a.passes(SECOND);
    a.sends().unwrap();
    assert!(a.says(Event::PassedOn(lease, 11)).is_empty());
    assert_eq!(a.answered(queued_behind(9)), ["a has 11"]);
}

#[test]
fn a_busy_answer_shows_that_a_wake_up_is_old() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    a.sends().unwrap();
    assert!(a.says(Event::PassedOn(lease, 8)).is_empty());
    assert!(a.answered(Outcome::Busy(holder(9))).is_empty());
}

#[test]
fn what_is_left_counts_from_when_the_ask_was_sent() {
    let (mut a, lease) = Process::queued();
    a.now = a.now + 2800 * MS;
    assert!(a.says(Event::PassedOn(lease, 8)).is_empty(), "too little is left");
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert_eq!((extend.count, extend.ttl), (1, TTL));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    assert_eq!(a.sends(), None);
}

#[test]
fn a_caller_that_does_not_renew_enters_after_an_extension() {
    let mut a = Process::new();
    a.wants_with(
        "a",
        Some(9 * SECOND),
        Call {
            renew: false,
            ..call(TTL)
        },
    );
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    assert!(a.says(Event::PassedOn(lease, 8)).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    let deadline = a.ownership.as_ref().unwrap().deadline().unwrap();
    assert_eq!(deadline.since(a.now), 8550 * MS);
}

/// Found by the simulation: the first extension, for a caller with a longer ttl, was carried out behind the second one.
#[test]
fn a_release_is_repeated_for_as_long_as_an_extension_before_entering_may_last() {
    let mut a = Process::new();
    a.wants_with(
        "a",
        Some(9 * SECOND),
        Call {
            renew: false,
            ..call(TTL)
        },
    );
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    a.says(Event::PassedOn(lease, 8));
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    a.says(Event::Answer(Err(unknown())));
    a.passes(SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    a.leaves("left", true);
    assert_eq!(a.sends().unwrap().action, Action::Release);
    a.says(Event::Answer(Err(unknown())));
    a.passes(TTL + SECOND);
    let again = a.sends().unwrap();
    assert_eq!((again.lease_id, again.action), (lease, Action::Release));
}

#[test]
fn a_row_that_was_passed_on_unheard_is_granted_to_the_next_ask() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    assert_eq!(a.sends().unwrap().lease_id, lease);
    let rest = Outcome::Granted {
        fence_token: 8,
        remaining: 2 * SECOND,
        taken_over: None,
        wanted: true,
        recorded: false,
    };
    assert_eq!(a.answered(rest), ["a has 8"]);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
}

#[test]
fn one_that_ran_out_unheard_asks_with_a_fresh_lease() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    a.sends().unwrap();
    a.answered(Outcome::Lost);
    assert_ne!(a.sends().unwrap().lease_id, lease);
}

#[test]
fn a_waiter_that_times_out_withdraws() {
    let mut a = Process::new();
    a.wants("a", Some(300 * MS));
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    assert_eq!(a.passes(300 * MS), ["a refused: busy"]);
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
    a.answered(Outcome::Withdrawn);
    assert!(a.machine.is_idle());
}

#[test]
fn a_wake_up_for_a_lease_that_nobody_waits_with_is_answered_by_its_release() {
    let (mut a, lease) = Process::queued();
    a.says(Event::GiveUp(1));
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    assert_eq!(a.sends(), None, "in a moment");
    a.says(Event::PassedOn(lease, 8));
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
}

#[test]
fn a_place_stays_when_one_of_several_gives_up() {
    let (mut a, lease) = Process::queued();
    a.wants("b", Some(5 * SECOND));
    a.says(Event::GiveUp(1));
    assert_eq!(a.sends(), None);
    assert_eq!(a.says(Event::PassedOn(lease, 8)), ["b has 8"]);
}

#[test]
fn an_acquire_of_unknown_outcome_is_released_by_its_lease() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    let lease = a.sends().unwrap().lease_id;
    assert!(a.says(Event::Answer(Err(unknown()))).is_empty());
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
    a.answered(Outcome::Lost);
    a.passes(20 * MS);
    assert_ne!(a.sends().unwrap().lease_id, lease);
}

#[test]
fn a_lease_ends_before_the_store_s_and_stays_lost() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.passes(4 * SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    a.now = a.now + 4600 * MS;
    let (out, _) = a.step(Event::Answer(Ok(extended())));
    assert!(
        out.notes
            .iter()
            .any(|note| matches!(note, Note::Lost(_, LostReason::Expired)))
    );
    assert_eq!(
        body.ended(),
        Some(LostReason::Expired),
        "an answer that comes too late"
    );
    // The row is freed as soon as the body has stopped.
    assert!(a.leaves("a", false).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

#[test]
fn the_row_is_busy_for_hold_min_before_the_call_returns() {
    let mut a = Process::new();
    let long = Call {
        hold_min: Some(60 * SECOND),
        ..call(TTL)
    };
    a.wants_with("a", None, long);
    a.sends().unwrap();
    a.answered(granted(7));
    assert!(
        a.leaves("a", true).is_empty(),
        "the row is not busy for long enough"
    );
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert!(extend.ttl > 60 * SECOND);
    let covers = Outcome::Extended {
        remaining: extend.ttl,
        revoked: false,
        wanted: false,
    };
    assert_eq!(a.answered(covers), ["a confirmed"]);
    assert!(a.passes(59 * SECOND).is_empty());
    assert_eq!(a.sends(), None);
    a.passes(SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

#[test]
fn callers_hear_why_they_waited_in_vain() {
    let mut a = Process::new();
    a.wants("a", Some(MS));
    a.sends().unwrap();
    assert_eq!(a.passes(MS), ["a refused: no answer"]);

    let mut a = Process::holding("a");
    a.wants("b", Some(SECOND));
    a.leaves("a", false);
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    assert_eq!(a.passes(SECOND), ["b refused: row locked"]);

    let mut a = Process::new();
    a.wants("a", Some(SECOND));
    a.sends().unwrap();
    a.says(Event::Answer(Err(StoreError::new(StoreErrorKind::Conflict, "c"))));
    assert_eq!(a.passes(SECOND), ["a refused: store"]);
}

#[test]
fn a_lost_re_entry_counts_no_hold() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.passes(9 * SECOND);
    let confirm = Confirm {
        ticket: "b",
        deadline: a.now + SECOND,
    };
    let (out, said) = a.step(Event::Enter(body, Some(confirm)));
    assert!(!out.entered);
    assert_eq!(said, ["b lost: Expired"]);
}

/// The holder leaves while the answer that gives the place is on its way.
#[test]
fn a_wake_up_may_come_before_the_answer_that_gives_the_place() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    let lease = a.sends().unwrap().lease_id;
    assert!(a.says(Event::PassedOn(lease, 8)).is_empty());
    assert_eq!(a.answered(queued_behind(7)), ["a has 8"]);
}

/// A non-blocking caller was asked for, and a waiting one came meanwhile: no wake-up would reach it.
#[test]
fn the_row_hears_of_a_caller_that_came_while_one_was_asked_for_that_does_not_wait() {
    let mut a = Process::new();
    a.wants("a", None);
    a.sends().unwrap();
    a.wants("b", Some(5 * SECOND));
    assert_eq!(a.answered(Outcome::Busy(holder(7))), ["a refused: busy"]);
    assert!(matches!(a.sends().unwrap().action, Action::Acquire(ask) if ask.queue.is_some()));
}

/// The reason for a retry may be gone before its time. The renewal must still happen.
#[test]
fn a_retry_that_is_not_needed_any_more_leaves_the_renewal() {
    let mut a = Process::holding("a");
    let ownership = a.ownership.clone().unwrap();
    let deadline = a.now + 5 * SECOND;
    let confirm = Some(Confirm {
        ticket: "n",
        deadline,
    });
    a.says(Event::Enter(Arc::clone(&ownership), confirm));
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["n confirmed"]);
    a.says(Event::Leave {
        ownership,
        in_order: true,
        confirm: None,
    });
    a.now = a.now + 10 * MS;
    let look_at = a.step(Event::Time).0.look_at.unwrap();
    assert!(look_at <= a.now + TTL / 3, "{look_at:?}");
}

/// A guard that is released after the engine has ended gets an answer.
#[test]
fn the_end_answers_everybody() {
    for leaves_before in [true, false] {
        let mut a = Process::holding("a");
        a.wants("b", Some(5 * SECOND));
        if leaves_before {
            a.ownership.clone().unwrap().end(LostReason::Shutdown, a.now);
            assert!(a.leaves("a", true).is_empty());
            a.sends().unwrap();
        }
        let mut said = a.says(Event::End);
        if !leaves_before {
            said.extend(a.leaves("a", true));
            said.extend(a.says(Event::End));
        }
        assert_eq!(said, ["b refused: shutdown", "a unconfirmed"]);
    }
}

/// A long lease is handed to an owner with a short ttl: it renews, and ends, by its own ttl.
#[test]
fn a_short_ttl_counts_after_a_hand_over_from_a_long_one() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.wants_with("b", Some(60 * SECOND), call(3 * SECOND));
    a.sends().unwrap();
    a.answered(granted(7));
    assert_eq!(a.leaves("a", true), ["a confirmed", "b has 8"]);
    let deadline = a.ownership.clone().unwrap().deadline().unwrap();
    assert!(deadline <= a.now + 3 * SECOND, "{deadline:?}");
    a.passes(60 * MS);
    a.sends().unwrap();
    a.answered(extended());
    let look_at = a.step(Event::Time).0.look_at.unwrap();
    assert!(look_at <= a.now + SECOND, "{look_at:?}");
}

/// While an owner holds the lock, a release on its way would only delay a renewal.
#[test]
fn an_abandoned_acquire_does_not_delay_a_renewal() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.sends().unwrap();
    a.says(Event::Answer(Err(unknown())));
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    a.answered(Outcome::Lost);
    a.passes(20 * MS);
    a.sends().unwrap();
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
    a.passes(2 * SECOND);
    assert_eq!(a.sends(), None);
    a.passes(2 * SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    a.answered(extended());
    assert!(a.leaves("a", true).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

/// The last answer about the key is out of date for a caller that comes after the release.
#[test]
fn a_caller_after_the_release_is_not_told_of_the_former_holder() {
    let mut a = Process::holding("a");
    a.leaves("a", true);
    a.sends().unwrap();
    a.answered(released());
    a.now = a.now + 100 * MS;
    a.wants("b", Some(SECOND));
    a.sends().unwrap();
    assert_eq!(a.passes(SECOND), ["b refused: no answer"]);
}

/// When the token numbers are used up, no owner gets a token by adding one.
#[test]
fn the_last_token_is_not_handed_over() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.wants("b", Some(5 * SECOND));
    a.wants("c", Some(5 * SECOND));
    a.sends().unwrap();
    a.answered(granted(i64::MAX - 1));
    assert_eq!(
        a.leaves("a", true),
        ["a confirmed", format!("b has {}", i64::MAX).as_str()]
    );
    assert!(a.leaves("b", true).is_empty());
}
