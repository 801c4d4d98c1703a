//! When the store is asked, and what callers hear of its answers.

use super::*;

/// How long the process does not ask.
fn pause(a: &Process) -> Duration {
    a.machine.poll_timeout().unwrap().since(a.now)
}

fn busy() -> Outcome {
    Outcome::Busy(holder(7))
}

fn waits(listening: bool) -> Process {
    let mut a = Process::new();
    a.listening = listening;
    a.wants("a", Some(600 * SECOND));
    a
}

fn fails(a: &mut Process, kind: StoreErrorKind) {
    let said = a.says(|machine, env| machine.handle_answer(env, Err(StoreError::new(kind, "no"))));
    assert!(said.is_empty(), "{said:?}");
}

fn waited(a: &Process) -> bool {
    a.notes.iter().any(|note| matches!(note, Note::Waited(..)))
}

fn ask(a: &mut Process) -> crate::store::Acquire {
    match a.sends().unwrap().action {
        Action::Acquire(ask) => ask,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_process_that_is_not_woken_queues_once_it_has_waited() {
    let mut a = waits(false);
    assert_eq!(ask(&mut a).queue, None);
    a.answered(busy());
    a.passes(999 * MS);
    assert_eq!(ask(&mut a).queue, None);
    a.answered(busy());
    a.now = a.now + SECOND;
    assert_eq!(ask(&mut a).queue, Some(1999 * MS));
}

#[test]
fn pauses_grow_while_the_key_is_busy_and_faster_while_the_store_fails() {
    for answer in [busy(), queued_behind(7)] {
        let mut a = waits(false);
        for paused in [10_000, 15_000, 22_500, 33_750] {
            a.sends().unwrap();
            a.answered(answer.clone());
            assert_eq!(pause(&a), Duration::from_micros(paused));
            a.now = a.now + pause(&a);
        }
    }
    let mut a = waits(false);
    for paused in [10, 20, 40, 80] {
        a.sends().unwrap();
        fails(&mut a, StoreErrorKind::Conflict);
        assert_eq!(pause(&a), paused * MS);
        a.now = a.now + pause(&a);
    }
    // A row that is locked is asked for sooner.
    let mut a = waits(false);
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    a.now = a.now + SECOND;
    a.sends().unwrap();
    a.answered(busy());
    assert_eq!(pause(&a), 15 * MS);
}

#[test]
fn a_process_that_is_woken_asks_before_its_place_is_over() {
    let mut a = waits(true);
    a.sends().unwrap();
    a.answered(Outcome::queued(holder(7), 1500 * MS));
    assert_eq!(pause(&a), Duration::from_micros(487_500));
    // From now on nothing wakes it.
    assert!(a.says(Machine::handle_wake_ups_lost).is_empty());
    assert_eq!(pause(&a), 100 * MS);
    a.now = a.now + 50 * MS;
    a.says(Machine::handle_wake_ups_lost);
    assert_eq!(pause(&a), 50 * MS);
}

#[test]
fn an_extension_of_what_was_passed_on_has_the_time_of_two_answers() {
    for (took, enters) in [(900 * MS, true), (SECOND, false)] {
        let mut a = waits(true);
        let lease = a.sends().unwrap().lease_id;
        a.now = a.now + took;
        a.answered(queued_behind(7));
        let said = a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
        assert_eq!(said.is_empty(), !enters, "{took:?}: {said:?}");
        assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
        if enters {
            continue;
        }
        for paused in [10, 20, 40] {
            fails(&mut a, StoreErrorKind::Conflict);
            a.now = a.now + (paused * MS).checked_sub(MS).unwrap();
            assert_eq!(a.sends(), None);
            a.now = a.now + MS;
            assert!(matches!(a.sends().unwrap().action, Action::Extend(_)));
        }
    }
}

/// As many as sixteen times those that were used, and not fewer at once.
#[test]
fn tokens_are_kept_free_for_hand_overs() {
    let mut a = waits(true);
    let next = |a: &mut Process| a.wants("next", Some(600 * SECOND));
    next(&mut a);
    assert_eq!(ask(&mut a).spare_tokens, 1024);
    a.answered(granted(10_000));
    let hands_over = |a: &mut Process, times: u32| {
        for _ in 0..times {
            next(a);
            assert_eq!(a.leaves("former", true).len(), 2);
        }
    };
    let goes_on = |a: &mut Process| {
        // Longer than a turn.
        a.now = a.now + SECOND;
        next(a);
        assert!(a.leaves("former", true).is_empty());
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        a.answered(released());
        let spare = ask(a).spare_tokens;
        a.answered(granted(20_000));
        spare
    };
    hands_over(&mut a, 300);
    assert_eq!(goes_on(&mut a), 4800);
    assert_eq!(goes_on(&mut a), 2400);
    assert_eq!(goes_on(&mut a), 1200);
    assert_eq!(goes_on(&mut a), 1024);
    assert_eq!(goes_on(&mut a), 1024);
}

/// For metrics of waiting.
#[test]
fn who_enters_a_free_key_has_not_waited() {
    let mut a = waits(true);
    a.sends().unwrap();
    a.answered(granted(7));
    assert!(!waited(&a));
    a.leaves("a", true);
    a.sends().unwrap();
    a.answered(released());
    // At the moment of the release.
    a.wants("b", Some(SECOND));
    a.sends().unwrap();
    a.answered(granted(8));
    assert!(!waited(&a));
    a.wants("c", Some(SECOND));
    a.now = a.now + 200 * MS;
    a.leaves("b", true);
    a.sends().unwrap();
    a.answered(released());
    a.sends().unwrap();
    a.answered(granted(9));
    assert!(waited(&a));
}

#[test]
fn a_caller_that_does_not_wait_hears_of_a_store_that_does_not_answer() {
    let mut a = Process::new();
    a.wants("a", None);
    a.sends().unwrap();
    assert_eq!(a.passes(5 * SECOND), ["a refused: store"]);
}

#[test]
fn a_key_is_listed_once_for_a_request() {
    let mut a = waits(true);
    assert_eq!(a.machine.poll_ready(), Some(Kind::Acquire));
    a.passes(MS);
    assert_eq!(a.machine.poll_ready(), None);
    a.sends().unwrap();
    a.passes(MS);
    assert_eq!(a.machine.poll_ready(), None, "it is on its way");
}

#[test]
fn wake_ups_are_wanted_while_callers_wait_for_somebody_else() {
    assert!(Process::queued().0.machine.wants_wake_ups());
    let mut a = Process::holding("a");
    assert!(!a.machine.wants_wake_ups());
    a.wants("b", Some(SECOND));
    assert!(!a.machine.wants_wake_ups(), "this process has the lock");
    let mut a = waits(true);
    assert!(!a.machine.wants_wake_ups(), "the key may be free");
    a.sends().unwrap();
    a.answered(busy());
    assert!(a.machine.wants_wake_ups());
    a.says(Machine::refuse_outermost);
    assert!(!a.machine.wants_wake_ups(), "nobody waits");
}

#[test]
fn nobody_looks_for_an_ask_while_this_process_has_the_lock() {
    let (mut a, lease) = Process::queued();
    a.wants("b", Some(60 * SECOND));
    assert_eq!(
        a.says(|machine, env| machine.handle_passed_on(env, lease, 8)),
        ["a has 8"]
    );
    a.sends().unwrap();
    a.answered(extended());
    assert!(pause(&a) > SECOND, "the renewal is next");
}

#[test]
fn an_answer_that_no_store_gives_is_of_unknown_outcome() {
    let mut a = waits(true);
    let lease = a.sends().unwrap().lease_id;
    a.answered(Outcome::Lost);
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
}

#[test]
fn the_log_names_who_was_taken_over() {
    let mut a = waits(true);
    a.sends().unwrap();
    a.answered(granted(8).with_taken_over(Some(holder(7))));
    let former = a.notes.iter().find_map(|note| match note {
        Note::TakenOver(ownership, former) => Some((ownership.fence_token, former.fence_token)),
        _ => None,
    });
    assert_eq!(former, Some((8, 7)));
}

#[test]
fn a_release_is_pending_until_it_is_answered() {
    let mut a = Process::holding("a");
    a.passes(TTL / 2);
    a.sends().unwrap();
    assert!(!a.machine.has_release_pending(), "an extension is on its way");
    a.answered(extended());
    a.leaves("a", true);
    assert!(a.machine.has_release_pending());
    a.sends().unwrap();
    assert!(a.machine.has_release_pending());
    a.answered(released());
    assert!(!a.machine.has_release_pending());

    let mut a = Process::new();
    let number = a.wants("a", Some(SECOND));
    a.sends().unwrap();
    assert!(!a.machine.has_release_pending());
    a.says(|machine, env| machine.give_up(env, number));
    assert!(a.machine.has_release_pending(), "nobody wants the grant");
    fails(&mut a, StoreErrorKind::Interrupted);
    assert!(a.machine.has_release_pending(), "it may have been granted");
    a.sends().unwrap();
    assert!(a.machine.has_release_pending());
    a.answered(released());
    assert!(!a.machine.has_release_pending());
}
