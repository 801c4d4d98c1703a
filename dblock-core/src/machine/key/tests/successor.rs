//! A process that waits as the successor: its place, wake-ups, and entering.

use super::*;

#[test]
fn a_caller_enters_on_a_wake_up_with_a_larger_token() {
    let (mut a, lease) = Process::queued();
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 7))
            .is_empty(),
        "an old wake-up"
    );
    assert_eq!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8)),
        ["a has 8"]
    );
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

/// The holder may have passed it on at once after the ask that gave the place.
#[test]
fn what_was_passed_on_ends_as_the_place_was_asked_for() {
    for answer in [None, Some(Outcome::Busy(holder(9))), Some(Outcome::Skipped)] {
        let (mut a, lease) = Process::queued();
        a.passes(SECOND);
        if let Some(answer) = answer {
            a.sends().unwrap();
            assert!(a.answered(answer).is_empty());
        }
        assert_eq!(
            a.says(|machine, env| machine.handle_passed_on(env, lease, 11)),
            ["a has 11"]
        );
        let deadline = a.ownership.as_ref().unwrap().deadline().unwrap();
        assert_eq!(deadline.since(a.now), 1850 * MS);
    }
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
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8))
            .is_empty()
    );
    assert!(a.answered(queued_behind(9)).is_empty(), "8 is over");
    a.passes(SECOND);
    a.sends().unwrap();
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 11))
            .is_empty()
    );
    assert_eq!(a.answered(queued_behind(9)), ["a has 11"]);
}

#[test]
fn a_busy_answer_shows_that_a_wake_up_is_old() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    a.sends().unwrap();
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8))
            .is_empty()
    );
    assert!(a.answered(Outcome::Busy(holder(9))).is_empty());
}

#[test]
fn what_is_left_counts_from_when_the_ask_was_sent() {
    let (mut a, lease) = Process::queued();
    a.now = a.now + 2800 * MS;
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8))
            .is_empty(),
        "too little is left"
    );
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert_eq!((extend.count, extend.ttl), (1, TTL));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    assert_eq!(a.sends(), None);
}

/// As [`Process::queued`], with a caller that does not renew.
fn queued_without_renewal() -> (Process, Uuid) {
    let mut a = Process::new();
    a.wants_with("a", Some(9 * SECOND), call(options().renew(false)));
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    (a, lease)
}

#[test]
fn a_caller_that_does_not_renew_enters_after_an_extension() {
    let (mut a, lease) = queued_without_renewal();
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8))
            .is_empty()
    );
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    let deadline = a.ownership.as_ref().unwrap().deadline().unwrap();
    assert_eq!(deadline.since(a.now), 8550 * MS);
}

/// Found by the simulation: the first extension, for a caller with a longer ttl, was carried out behind the
/// second one.
#[test]
fn a_release_is_repeated_for_as_long_as_an_extension_before_entering_may_last() {
    let (mut a, lease) = queued_without_renewal();
    a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    a.passes(SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
    assert_eq!(a.answered(extended()), ["a has 8"]);
    a.leaves("left", true);
    assert_eq!(a.sends().unwrap().action, Action::Release);
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    a.passes(TTL + SECOND);
    let again = a.sends().unwrap();
    assert_eq!((again.lease_id, again.action), (lease, Action::Release));
}

#[test]
fn a_row_that_was_passed_on_unheard_is_granted_to_the_next_ask() {
    let (mut a, lease) = Process::queued();
    a.passes(SECOND);
    assert_eq!(a.sends().unwrap().lease_id, lease);
    let rest = Outcome::granted(8, 2 * SECOND).with_wanted(true);
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
    a.says(|machine, env| machine.give_up(env, 1));
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    assert_eq!(a.sends(), None, "in a moment");
    a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
}

#[test]
fn a_place_stays_when_one_of_several_gives_up() {
    let (mut a, lease) = Process::queued();
    a.wants("b", Some(5 * SECOND));
    a.says(|machine, env| machine.give_up(env, 1));
    assert_eq!(a.sends(), None);
    assert_eq!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8)),
        ["b has 8"]
    );
}

/// The holder leaves while the answer that gives the place is on its way.
#[test]
fn a_wake_up_may_come_before_the_answer_that_gives_the_place() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    let lease = a.sends().unwrap().lease_id;
    assert!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8))
            .is_empty()
    );
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

/// The place as successor is free then. Each wake-up for another makes the pause shorter, but none counts that
/// came while nobody waited.
#[test]
fn a_wake_up_for_another_makes_the_next_ask_come_sooner() {
    let asks_after = |a: &mut Process| {
        a.says(|machine, env| machine.handle_passed_on(env, Uuid::max(), 8));
        a.machine.poll_timeout().unwrap().since(a.now)
    };
    let (mut a, _) = Process::queued();
    assert!(a.machine.poll_timeout().unwrap().since(a.now) > 500 * MS);
    assert_eq!(asks_after(&mut a), 6 * MS);
    assert_eq!(asks_after(&mut a), 6 * MS / 4);
    let mut a = Process::new();
    for _ in 0..9 {
        a.says(|machine, env| machine.handle_passed_on(env, Uuid::max(), 8));
    }
    a.wants("a", Some(60 * SECOND));
    a.sends().unwrap();
    assert!(a.answered(queued_behind(7)).is_empty());
    assert_eq!(asks_after(&mut a), 6 * MS);
}

#[test]
fn nobody_enters_at_the_deadline() {
    for (late, enters) in [(8550 * MS, false), (8549 * MS, true)] {
        let mut a = Process::new();
        a.wants("a", Some(60 * SECOND));
        a.sends().unwrap();
        a.now = a.now + late;
        assert_eq!(!a.answered(granted(7)).is_empty(), enters, "{late:?}");
    }
    // What was passed on must last for longer than it takes to extend it.
    for (late, enters) in [(2750 * MS, false), (2749 * MS, true)] {
        let (mut a, lease) = Process::queued();
        a.now = a.now + late;
        let said = a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
        assert_eq!(!said.is_empty(), enters, "{late:?}");
    }
}
