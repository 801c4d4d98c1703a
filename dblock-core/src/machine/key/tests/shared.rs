//! A lease that several callers of the process share.

use super::*;
use crate::options;

const LONG: Option<Duration> = Some(Duration::from_mins(1));

fn sharing(limit: u32) -> LockOptions {
    let mut options = options();
    options.limit = Some(limit);
    options
}

/// A process whose first caller shares the lock, with token 7.
fn shared(limit: u32) -> Process {
    Process::holding_with("a", call(sharing(limit)))
}

/// A caller comes.
fn comes(process: &mut Process, ticket: &'static str, options: LockOptions) -> Vec<String> {
    let mut call = call(options);
    call.options.wait = Wait::For(Duration::from_mins(1));
    process.says(|machine, env| machine.acquire(env, Arc::new(call), ticket))
}

/// The count in the extension that is sent, and how many want to enter.
fn counts(process: &mut Process) -> (u32, Option<u32>) {
    match process.sends().unwrap().action {
        Action::Extend(extend) => (extend.count, extend.share.unwrap().enter.map(|enter| enter.count)),
        other => panic!("{other:?}"),
    }
}

fn answered(process: &mut Process, count: u32) -> Vec<String> {
    process.answered(extended().with_count(count))
}

#[test]
fn callers_enter_beside_each_other_without_the_store_and_the_row_follows() {
    let mut a = shared(u32::MAX);
    assert_eq!(comes(&mut a, "b", sharing(u32::MAX)), ["b has 7"]);
    assert_eq!(comes(&mut a, "c", sharing(u32::MAX)), ["c has 7"]);
    assert!(a.sends().is_none());
    a.passes(50 * MS);
    assert_eq!(counts(&mut a), (3, None));
    answered(&mut a, 3);
    assert_eq!(a.leaves("c", true), ["c confirmed"], "the others stay");
    assert!(a.sends().is_none());
    a.passes(50 * MS);
    assert_eq!(counts(&mut a), (2, None));
}

fn joins_quietly(process: &mut Process, options: LockOptions) -> Option<Arc<Ownership>> {
    let key = process.machine.key().clone();
    process
        .machine
        .join_quietly(process.now, &key, &Arc::new(call(options)))
}

/// Callers come and leave in the quiet way, or in the usual one. Returns when the last one's lease ends, and what is sent
/// until the lock is free.
fn round(quietly: bool) -> (Option<Time>, Vec<Action>) {
    let mut a = shared(u32::MAX);
    let first = a.ownership.clone().unwrap();
    // The row follows from here on.
    assert_eq!(comes(&mut a, "b", sharing(u32::MAX)), ["b has 7"]);
    let second = a.ownership.clone().unwrap();
    a.now = a.now + 10 * MS;
    if quietly {
        a.ownership = joins_quietly(&mut a, sharing(u32::MAX));
        for leaves in [&first, &second] {
            assert_eq!(a.machine.leave_quietly(a.now, leaves), Ok(Some(10 * MS)));
        }
    } else {
        comes(&mut a, "c", sharing(u32::MAX));
        for leaves in [&first, &second] {
            let left = a.step(|machine, env| machine.leave(env, leaves, true, None)).0;
            assert_eq!(left, Some(10 * MS));
        }
    }
    let mut sent = Vec::new();
    a.passes(40 * MS);
    sent.extend(a.sends().map(|request| request.action));
    answered(&mut a, 1);
    let deadline = a.ownership.as_ref().unwrap().deadline();
    a.leaves("c", true);
    sent.extend(a.sends().map(|request| request.action));
    assert_eq!(a.answered(released()), ["c confirmed"]);
    assert!(a.machine.is_idle());
    (deadline, sent)
}

#[test]
fn what_is_done_quietly_comes_to_the_same() {
    let (deadline, sent) = round(true);
    assert_eq!((deadline, sent.len()), (round(false).0, 2));
    assert_eq!(format!("{sent:?}"), format!("{:?}", round(false).1));
}

#[test]
fn nothing_is_done_quietly_that_something_else_follows_from() {
    let all = || sharing(u32::MAX);
    let mut a = shared(u32::MAX);
    let first = a.ownership.clone().unwrap();
    assert!(joins_quietly(&mut a, all()).is_none(), "the row has to follow");
    assert_eq!(comes(&mut a, "b", all()), ["b has 7"]);
    for other in [
        all().ttl(TTL * 2),
        all().max_hold(SECOND),
        all().renew(false),
        sharing(1),
    ] {
        assert!(joins_quietly(&mut a, other.clone()).is_none(), "{other:?}");
    }
    assert!(joins_quietly(&mut a, all()).is_some());
    assert!(comes(&mut a, "alone", options()).is_empty());
    assert!(joins_quietly(&mut a, all()).is_none(), "somebody waits");
    assert_eq!(a.machine.leave_quietly(a.now, &first), Err(NotQuiet));
}

#[test]
fn when_the_stretch_is_over_the_store_is_asked() {
    let mut a = shared(u32::MAX);
    a.passes(100 * MS);
    assert!(comes(&mut a, "b", sharing(u32::MAX)).is_empty());
    assert!(comes(&mut a, "c", sharing(u32::MAX)).is_empty());
    assert_eq!(counts(&mut a), (1, Some(2)));
    assert_eq!(
        answered(&mut a, 2),
        ["b has 7", "c has 7"],
        "nobody else wants it: a new stretch"
    );
    a.passes(100 * MS);
    assert!(comes(&mut a, "d", sharing(u32::MAX)).is_empty());
    counts(&mut a);
    let refused = extended().with_count(3).with_wanted(true);
    assert!(a.answered(refused).is_empty());
    assert!(a.sends().is_none(), "it waits for a wake-up or a pause");
    a.says(Machine::handle_freed);
    assert_eq!(counts(&mut a), (3, Some(1)));
}

/// Whether the process asks when it is told this.
fn asks_when(process: &mut Process, inside: u32, next: Option<(Uuid, Duration)>) -> bool {
    process.says(|machine, env| machine.handle_may_enter(env, inside, next));
    process.sends().is_some()
}

#[test]
fn one_who_waits_for_room_asks_when_it_may_enter() {
    let waits = || {
        let mut process = Process::new();
        comes(&mut process, "a", sharing(3));
        let lease = process.sends().unwrap().lease_id;
        (process, (lease, SECOND))
    };
    let queued = || Outcome::queued(holder(7), 3 * SECOND);
    let (mut next, own) = waits();
    assert!(!asks_when(&mut next, 2, Some(own)), "its answer is on its way");
    next.answered(queued());
    assert!(next.sends().is_some(), "it was told meanwhile");
    next.answered(queued());
    assert!(!asks_when(&mut next, 3, Some(own)), "there is no room");
    assert!(asks_when(&mut next, 2, Some(own)));
    next.answered(queued());
    assert!(asks_when(&mut next, 2, None));
    let (mut behind, _) = waits();
    behind.answered(Outcome::Busy(holder(7)));
    let other = (Uuid::now_v7(), 10 * MS);
    assert!(!asks_when(&mut behind, 2, Some(other)), "another came first");
    behind.passes(10 * MS);
    assert!(asks_when(&mut behind, 2, Some(other)), "it came as early");
}

#[test]
fn a_free_place_is_asked_for_later_each_time_that_others_are_faster() {
    let mut a = Process::new();
    comes(&mut a, "a", sharing(3));
    a.sends().unwrap();
    a.answered(Outcome::Busy(holder(7)));
    for most in [10, 20, 40] {
        assert!(!asks_when(&mut a, 3, None), "there is no room");
        a.passes(most * MS);
        assert!(a.sends().is_some());
        a.answered(Outcome::Busy(holder(7)));
    }
    a.passes(SECOND);
    a.sends().unwrap();
    a.answered(granted(8));
    a.leaves("a", true);
    a.sends().unwrap();
    a.answered(released());
    comes(&mut a, "b", sharing(3));
    a.sends().unwrap();
    a.answered(Outcome::Busy(holder(9)));
    assert!(!asks_when(&mut a, 3, None));
    a.passes(10 * MS);
    assert!(a.sends().is_some(), "others were slower meanwhile");
    let mut alone = Process::new();
    comes(&mut alone, "w", options());
    alone.sends().unwrap();
    alone.answered(Outcome::Busy(holder(7)));
    assert!(!asks_when(&mut alone, 1, None), "others share it");
    alone.passes(10 * MS);
    assert!(alone.sends().is_some());
}

#[test]
fn those_who_share_the_key_ask_if_they_came_before_the_one_that_comes_next() {
    let mut a = shared(3);
    comes(&mut a, "b", sharing(3));
    counts(&mut a);
    answered(&mut a, 1);
    assert!(!asks_when(&mut a, 3, None), "there is no room");
    assert!(!asks_when(&mut a, 2, Some((Uuid::now_v7(), SECOND))));
    assert!(asks_when(&mut a, 2, Some((Uuid::now_v7(), Duration::ZERO))));
}

#[test]
fn those_who_share_the_key_ask_again_when_a_hold_of_others_ends() {
    let mut a = shared(2);
    comes(&mut a, "b", sharing(2));
    counts(&mut a);
    a.answered(extended().with_count(1).with_room_in(Some(200 * MS)));
    a.passes(200 * MS);
    assert!(a.sends().is_none());
    a.passes(MS);
    assert_eq!(counts(&mut a), (1, Some(1)));
}

#[test]
fn a_place_goes_to_the_next_caller_or_back_to_the_store() {
    let mut a = shared(3);
    assert!(comes(&mut a, "b", sharing(3)).is_empty());
    assert_eq!(counts(&mut a), (1, Some(1)));
    assert_eq!(answered(&mut a, 2), ["b has 7"]);
    assert!(comes(&mut a, "c", sharing(3)).is_empty());
    assert_eq!(counts(&mut a), (2, Some(1)));
    assert!(answered(&mut a, 2).is_empty(), "there is no room");
    assert_eq!(a.leaves("b", true), ["b confirmed", "c has 7"]);
    assert!(a.sends().is_none(), "the row counts two as before");
    a.leaves("c", true);
    assert_eq!(counts(&mut a), (1, None), "others may wait for the place");
    assert!(comes(&mut a, "d", sharing(3)).is_empty(), "it is on its way back");
    answered(&mut a, 1);
    assert_eq!(counts(&mut a), (1, Some(1)));
}

/// With the room that it makes, the store extends the lease.
#[test]
fn room_is_used_that_a_slow_store_has_made() {
    let mut a = shared(3);
    assert!(comes(&mut a, "b", sharing(3)).is_empty());
    assert_eq!(counts(&mut a), (1, Some(1)));
    a.now = a.now + TTL / 2;
    assert_eq!(answered(&mut a, 2), ["b has 7"]);
}

/// One who has left gives no place to a caller for whom the store has made no room any more.
#[test]
fn room_is_given_back_with_the_next_extension() {
    let mut a = shared(4);
    let first = a.ownership.clone();
    assert!(comes(&mut a, "b", sharing(4)).is_empty());
    assert!(comes(&mut a, "c", sharing(4)).is_empty());
    assert_eq!(counts(&mut a), (1, Some(2)));
    let c = a.machine.queue.first().unwrap().0 + 1;
    a.says(|machine, env| machine.give_up(env, c));
    assert_eq!(answered(&mut a, 3), ["b has 7"]);
    a.passes(50 * MS);
    assert_eq!(counts(&mut a), (2, None));
    a.ownership = first;
    a.leaves("a", true);
    a.now = a.now + TTL / 2;
    assert!(comes(&mut a, "d", sharing(4)).is_empty(), "a renewal is due");
}

#[test]
fn room_is_not_used_under_a_smaller_limit() {
    let mut a = shared(9);
    assert!(comes(&mut a, "b", sharing(9)).is_empty());
    counts(&mut a);
    let b = a.machine.queue.first().unwrap().0;
    assert!(comes(&mut a, "c", sharing(2)).is_empty());
    a.says(|machine, env| machine.give_up(env, b));
    assert!(answered(&mut a, 2).is_empty());
    assert_eq!(counts(&mut a), (1, Some(1)), "c asks for itself");
}

#[test]
fn one_who_wants_it_alone_stops_those_behind_it() {
    let mut a = shared(u32::MAX);
    assert!(comes(&mut a, "alone", options()).is_empty());
    assert!(comes(&mut a, "b", sharing(u32::MAX)).is_empty());
    assert!(a.sends().is_none());
    assert!(a.leaves("a", true).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(released()), ["a confirmed"]);
    let Action::Acquire(ask) = a.sends().unwrap().action else {
        panic!("the next caller asks");
    };
    assert_eq!(ask.limit, None);
    a.answered(granted(8));
    assert!(a.leaves("alone", true).is_empty());
    assert!(
        matches!(a.sends().unwrap().action, Action::Release),
        "b shares, so it is not handed over"
    );
}

/// The store is not asked for the one behind, and so has no part in its timeout.
#[test]
fn one_who_waits_behind_one_who_wants_it_alone_finds_it_busy() {
    let mut a = shared(u32::MAX);
    assert!(comes(&mut a, "alone", options()).is_empty());
    let number = a.wants_with("b", Some(SECOND), call(sharing(u32::MAX)));
    assert!(a.machine.holder_for(number, a.now).is_some());
    assert_eq!(a.passes(SECOND), ["b refused: busy"]);
    let mut a = shared(u32::MAX);
    a.wants_with("alone", Some(SECOND), call(options()));
    a.wants_with("b", Some(SECOND), call(sharing(u32::MAX)));
    assert_eq!(a.passes(SECOND), ["alone refused: busy", "b refused: busy"]);
}

#[test]
fn one_ends_by_itself_and_the_others_go_on() {
    let mut a = shared(u32::MAX);
    let stays = a.ownership.clone().unwrap();
    assert_eq!(
        comes(&mut a, "b", sharing(u32::MAX).max_hold(20 * MS)),
        ["b has 7"]
    );
    let ends = a.ownership.clone().unwrap();
    a.passes(20 * MS);
    assert_eq!((ends.ended(), stays.ended()), (Some(LostReason::MaxHold), None));
    assert!(matches!(a.notes[..], [Note::Lost(..)]));
    assert_eq!(a.machine.holds(&ends), 0);
    assert_eq!(a.machine.holds(&stays), 1);
    assert_eq!(a.leaves("b", false), ["b confirmed"]);
}

/// A caller that finds it busy hears of one who is inside still.
#[test]
fn one_who_has_ended_is_not_named() {
    let mut a = Process::holding_with("a", call(sharing(u32::MAX).max_hold(20 * MS)));
    let mut stays = call(sharing(u32::MAX));
    stays.owner = Uuid::from_u128(77);
    let said = a.says(|machine, env| machine.acquire(env, Arc::new(stays), "b"));
    assert_eq!(said, ["b has 7"]);
    a.passes(20 * MS);
    let number = a.wants_with("alone", Some(SECOND), call(options()));
    let holder = a.machine.holder_for(number, a.now).unwrap();
    assert_eq!(holder.owner, Uuid::from_u128(77));
}

/// Nobody has the row of a shared lock locked for long, so others were faster.
#[test]
fn a_release_that_others_outrun_is_sent_again_soon() {
    let mut a = shared(u32::MAX);
    assert!(a.leaves("a", true).is_empty());
    for _ in 0..20 {
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        assert!(a.answered(Outcome::Skipped).is_empty());
        let pause = a.machine.poll_timeout().unwrap().since(a.now);
        assert!(MS / 2 < pause && pause <= 100 * MS, "{pause:?}");
        a.passes(pause);
    }
}

#[test]
fn all_end_when_the_row_names_them_no_more() {
    let mut a = shared(u32::MAX);
    let one = a.ownership.clone().unwrap();
    comes(&mut a, "b", sharing(u32::MAX));
    let two = a.ownership.clone().unwrap();
    a.passes(TTL / 2);
    a.sends().unwrap();
    a.answered(Outcome::Lost);
    for owner in [one, two] {
        assert_eq!(owner.ended(), Some(LostReason::Gone));
    }
    assert_eq!(a.notes.len(), 2);
}

#[test]
fn a_place_for_the_other_kind_is_given_back() {
    let mut a = Process::new();
    let shares = a.wants_with("a", LONG, call(sharing(3)));
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    a.wants("alone", LONG);
    a.says(|machine, env| machine.give_up(env, shares));
    let request = a.sends().unwrap();
    assert_eq!((request.lease_id, request.action), (lease, Action::Release));
    a.answered(Outcome::Withdrawn);
    assert_ne!(a.sends().unwrap().lease_id, lease);
}

#[test]
fn a_lease_that_was_passed_on_is_written_as_shared_at_once() {
    let mut a = Process::new();
    a.wants_with("a", LONG, call(sharing(3).ttl(3 * SECOND)));
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    let said = a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
    assert_eq!(said, ["a has 8"]);
    assert_eq!(counts(&mut a), (1, None));
}

#[test]
fn a_store_that_is_down_is_not_busy() {
    let mut a = shared(u32::MAX);
    a.passes(100 * MS);
    a.wants_with("now", None, call(sharing(u32::MAX)));
    a.wants_with("b", Some(SECOND), call(sharing(u32::MAX)));
    a.sends().unwrap();
    let down = StoreError::new(StoreErrorKind::Unreachable, "it is down");
    let said = a.says(|machine, env| machine.handle_answer(env, Err(down)));
    assert_eq!(said, ["now refused: store"]);
    assert_eq!(a.passes(SECOND), ["b refused: store"]);
}

#[test]
fn one_that_is_not_renewed_ends_with_the_ttl_that_it_is_given_later() {
    let mut a = shared(u32::MAX);
    comes(&mut a, "b", sharing(u32::MAX).ttl(2 * SECOND).renew(false));
    let b = a.ownership.clone().unwrap();
    let ends = |ttl: Duration, now: Time| Some((now + ttl).before(options::margin(ttl)));
    assert_eq!(b.deadline(), ends(2 * SECOND, a.now));
    let confirm = a.confirm("extended");
    a.says(|machine, env| machine.set_ttl(env, &b, 8 * SECOND, confirm));
    let now = a.now;
    assert_eq!(counts(&mut a), (2, None));
    assert_eq!(answered(&mut a, 2), ["extended confirmed"]);
    assert_eq!(b.deadline(), ends(8 * SECOND, now));
}

/// The others that share it lock the row again and again.
#[test]
fn who_shares_and_does_not_wait_asks_again_for_a_locked_row() {
    let mut a = Process::new();
    a.wants_with("a", None, call(sharing(3)));
    while a.now < Time::from_nanos(0) + 101 * SECOND {
        a.sends().unwrap();
        assert!(a.answered(Outcome::Skipped).is_empty());
        a.passes(9 * MS);
    }
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["a refused: row locked"]);
}

#[test]
fn one_who_wants_it_alone_hears_of_a_locked_row_before_those_who_share() {
    let mut a = Process::new();
    a.wants_with("a", None, call(sharing(3)));
    a.wants("b", None);
    a.sends().unwrap();
    assert!(a.answered(Outcome::Skipped).is_empty());
    a.passes(20 * MS);
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["b refused: row locked"]);
}

#[test]
fn there_may_be_room_for_a_larger_limit() {
    let mut a = Process::new();
    for (ticket, limit) in [("a", 1), ("b", 5), ("c", 1)] {
        a.wants_with(ticket, None, call(sharing(limit)));
    }
    a.sends().unwrap();
    let refused = ["a refused: busy", "c refused: busy"];
    assert_eq!(a.answered(Outcome::Busy(holder(7))), refused);
    let Action::Acquire(ask) = a.sends().unwrap().action else {
        panic!("b asks");
    };
    assert_eq!(ask.limit, Some(5));

    // One that waits comes first.
    let mut a = Process::new();
    a.wants_with("a", LONG, call(sharing(1)));
    a.wants_with("b", None, call(sharing(5)));
    a.sends().unwrap();
    assert_eq!(a.answered(queued_behind(7)), ["b refused: busy"]);
}

#[test]
fn who_does_not_wait_asks_often_for_room_in_a_locked_row() {
    let mut a = shared(3);
    a.wants_with("b", None, call(sharing(3)));
    let begin = a.now;
    while a.now.since(begin) < SECOND {
        counts(&mut a);
        assert!(a.answered(Outcome::Skipped).is_empty());
        a.passes(9 * MS);
    }
    counts(&mut a);
    assert_eq!(a.answered(Outcome::Skipped), ["b refused: row locked"]);
}

#[test]
fn who_waits_for_room_in_a_locked_row_hears_that() {
    let mut a = shared(3);
    a.passes(3 * SECOND);
    a.wants_with("b", Some(SECOND), call(sharing(3)));
    counts(&mut a);
    a.answered(Outcome::Skipped);
    assert_eq!(a.passes(SECOND), ["b refused: row locked"]);
}

/// There may be room for it where there was none for the one before.
#[test]
fn the_next_caller_with_a_larger_limit_asks_at_once() {
    let mut a = Process::new();
    a.wants_with("a", Some(SECOND), call(sharing(1)));
    a.wants_with("b", LONG, call(sharing(3)));
    a.sends().unwrap();
    a.answered(queued_behind(7));
    assert!(a.sends().is_none());
    assert_eq!(a.passes(SECOND), ["a refused: busy"]);
    let Action::Acquire(ask) = a.sends().unwrap().action else {
        panic!("b asks");
    };
    assert_eq!(ask.limit, Some(3));
    a.answered(queued_behind(7));
    assert!(a.sends().is_none());
}

/// All had left when the answer came that extended the lease.
#[test]
fn one_who_joins_after_all_have_left_has_the_extended_lease() {
    let mut a = Process::new();
    a.wants_with("a", LONG, call(sharing(u32::MAX)));
    let lease = a.sends().unwrap().lease_id;
    a.answered(queued_behind(7));
    a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
    counts(&mut a);
    a.leaves("a", true);
    assert!(comes(&mut a, "b", sharing(u32::MAX)).is_empty());
    assert_eq!(answered(&mut a, 1), ["a confirmed", "b has 8"]);
    let end = a.ownership.as_ref().unwrap().deadline().unwrap();
    assert!(
        end > a.now + 8 * SECOND,
        "that of the pass-on was shorter: {end:?}"
    );
}

#[test]
fn a_lease_of_those_who_want_no_renewal_is_not_renewed() {
    let mut a = shared(u32::MAX);
    let first = a.ownership.clone();
    comes(&mut a, "b", sharing(u32::MAX).renew(false));
    let b = std::mem::replace(&mut a.ownership, first).unwrap();
    a.passes(50 * MS);
    assert_eq!(counts(&mut a), (2, None));
    answered(&mut a, 2);
    a.passes(TTL / 2);
    assert_eq!(counts(&mut a), (2, None), "a is renewed");
    answered(&mut a, 2);
    a.leaves("a", true);
    a.passes(50 * MS);
    assert_eq!(counts(&mut a), (1, None), "the row follows");
    answered(&mut a, 1);
    a.passes(3_900 * MS);
    assert_eq!((a.sends(), b.ended()), (None, None));
    a.passes(100 * MS);
    assert_eq!((a.sends(), b.ended()), (None, Some(LostReason::Expired)));
}
