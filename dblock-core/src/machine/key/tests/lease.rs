//! A lease from its grant to its end: requests, owners one after the other, and losses.

use super::*;

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
    let (ownership, confirm) = (a.ownership.clone().unwrap(), a.confirm("extended"));
    assert!(
        a.says(|machine, env| machine.set_ttl(env, &ownership, 2 * TTL, confirm))
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
    let outcome = Outcome::extended(2 * TTL);
    assert_eq!(a.answered(outcome), ["extended confirmed"]);
    assert_eq!(ownership.deadline(), Some((sent_at + 2 * TTL).before(TTL / 10)));
    assert_eq!(a.sends(), None);
    a.passes(TTL);
    assert_eq!(a.sends().map(ttl), Some(2 * TTL), "the renewal");
}

#[test]
fn a_longer_ttl_that_is_asked_for_during_a_renewal_takes_nothing_from_it() {
    let mut a = Process::holding("a");
    a.passes(TTL / 2);
    a.sends().unwrap();
    let (ownership, confirm) = (a.ownership.clone().unwrap(), a.confirm("extended"));
    a.says(|machine, env| machine.set_ttl(env, &ownership, 20 * TTL, confirm));
    a.answered(extended());
    assert_eq!(ownership.deadline(), Some((a.now + TTL).before(TTL / 20)));
}

#[test]
fn an_acquire_of_unknown_outcome_is_released_by_its_lease() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    let lease = a.sends().unwrap().lease_id;
    assert!(
        a.says(|machine, env| machine.handle_answer(env, Err(unknown())))
            .is_empty()
    );
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
    a.says(|machine, env| machine.handle_answer(env, Ok(extended())));
    assert!(
        a.notes
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
fn a_revoked_lease_is_asked_for_and_not_lengthened() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    let deadline = body.deadline();
    // The row's end stays where it was when the key was granted.
    for left in [TTL * 2 / 3, TTL / 3] {
        a.passes(TTL / 3);
        assert!(matches!(a.sends().unwrap().action, Action::Extend(_)), "{left:?}");
        let revoked = Outcome::extended(left).with_revoked(true);
        assert!(a.answered(revoked).is_empty());
        assert_eq!(a.sends(), None);
        assert_eq!((body.deadline(), body.is_revoked()), (deadline, true));
    }

    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.passes(TTL / 3);
    a.sends().unwrap();
    let revoked = Outcome::extended(TTL * 2 / 3).with_revoked(true);
    a.answered(revoked);
    a.passes(TTL / 3);
    a.sends().expect("the key may have been freed by force since");
    a.answered(Outcome::Lost);
    assert_eq!(body.ended(), Some(LostReason::Revoked));
}

#[test]
fn the_row_is_busy_for_hold_min_before_the_call_returns() {
    let mut a = Process::holding_with("a", call(options().hold_min(60 * SECOND)));
    assert!(
        a.leaves("a", true).is_empty(),
        "the row is not busy for long enough"
    );
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert!(extend.ttl > 60 * SECOND);
    let covers = Outcome::extended(extend.ttl);
    assert_eq!(a.answered(covers), ["a confirmed"]);
    assert!(a.passes(59 * SECOND).is_empty());
    assert_eq!(a.sends(), None);
    a.passes(SECOND);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

/// If this process ends, the key is free when `hold_min` is over, and not when the lease would have been.
#[test]
fn the_row_is_not_busy_for_longer_than_hold_min_needs() {
    let brief = options().ttl(60 * SECOND).hold_min(2 * SECOND);
    let mut a = Process::holding_with("a", call(brief));
    assert!(a.leaves("a", true).is_empty(), "the row is busy for too long");
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    assert!(
        extend.count == 0 && extend.ttl > 2 * SECOND && extend.ttl < 4 * SECOND,
        "{extend:?}"
    );
    // A failure is repeated; the answer of an extension that was sent before would not do.
    assert!(
        a.says(|machine, env| machine.handle_answer(env, Err(unknown())))
            .is_empty()
    );
    a.passes(20 * MS);
    let Action::Extend(extend) = a.sends().unwrap().action else {
        panic!()
    };
    let shorter = Outcome::extended(extend.ttl);
    assert_eq!(a.answered(shorter), ["a confirmed"]);
    assert_eq!(a.sends(), None);
    a.passes(2 * SECOND);
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
    a.says(|machine, env| machine.handle_answer(env, Err(StoreError::new(StoreErrorKind::Conflict, "c"))));
    assert_eq!(a.passes(SECOND), ["a refused: store"]);
}

#[test]
fn a_lost_re_entry_counts_no_hold() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.passes(9 * SECOND);
    let confirm = a.confirm("b");
    let (entered, said) = a.step(|machine, env| machine.enter(env, &body, Some(confirm)));
    assert!(entered.is_err());
    assert_eq!(said, ["b lost: Expired"]);
}

/// The pauses between the requests for such a row grow longer than a caller's timeout, who would be told that the
/// store has not answered.
#[test]
fn a_re_entry_waits_for_no_pause_of_a_locked_row() {
    let mut a = Process::holding("a");
    let enter = |a: &mut Process, name| {
        let (body, confirm) = (a.ownership.clone().unwrap(), a.confirm(name));
        let (entered, said) = a.step(|machine, env| machine.enter(env, &body, Some(confirm)));
        assert!(entered.is_ok() && said.is_empty(), "{said:?}");
    };
    enter(&mut a, "first");
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["first confirmed"]);
    for _ in 0..10 {
        a.now = a.now + TTL / 20;
        if a.sends().is_some() {
            a.answered(Outcome::Skipped);
        }
    }
    assert_eq!(a.sends(), None, "it pauses");
    enter(&mut a, "second");
    a.sends().expect("somebody waits");
    assert_eq!(a.answered(Outcome::Skipped), ["second confirmed"]);
    assert_eq!(a.sends(), None, "it pauses");

    // A store that fails is not asked more often.
    a.passes(SECOND);
    a.sends().unwrap();
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    enter(&mut a, "third");
    assert_eq!(a.sends(), None);
}

/// The reason for a retry may be gone before its time. The renewal must still happen.
#[test]
fn a_retry_that_is_not_needed_any_more_leaves_the_renewal() {
    let mut a = Process::holding("a");
    let (ownership, confirm) = (a.ownership.clone().unwrap(), a.confirm("n"));
    a.says(|machine, env| machine.enter(env, &ownership, Some(confirm)));
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["n confirmed"]);
    a.says(|machine, env| machine.leave(env, &ownership, true, None));
    a.now = a.now + 10 * MS;
    a.says(Machine::handle_timeout);
    let look_at = a.machine.poll_timeout().unwrap();
    assert!(look_at <= a.now + TTL / 3, "{look_at:?}");
}

/// A guard that is released after the engine has ended gets a reply.
#[test]
fn an_abort_replies_to_everybody() {
    for leaves_before in [true, false] {
        let mut a = Process::holding("a");
        a.wants("b", Some(5 * SECOND));
        if leaves_before {
            a.ownership.clone().unwrap().end(LostReason::Shutdown, a.now);
            assert!(a.leaves("a", true).is_empty());
            a.sends().unwrap();
        }
        let mut said = a.says(Machine::abort);
        if !leaves_before {
            said.extend(a.leaves("a", true));
            said.extend(a.says(Machine::abort));
        }
        assert_eq!(said, ["b refused: shutdown", "a unconfirmed"]);
    }
}

/// A long lease is handed to an owner with a short ttl: it renews, and ends, by its own ttl.
#[test]
fn a_short_ttl_counts_after_a_hand_over_from_a_long_one() {
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.wants_with("b", Some(60 * SECOND), call(options().ttl(3 * SECOND)));
    a.sends().unwrap();
    a.answered(granted(7));
    assert_eq!(a.leaves("a", true), ["a confirmed", "b has 8"]);
    let deadline = a.ownership.clone().unwrap().deadline().unwrap();
    assert!(deadline <= a.now + 3 * SECOND, "{deadline:?}");
    a.passes(60 * MS);
    a.sends().unwrap();
    a.answered(extended());
    a.says(Machine::handle_timeout);
    let look_at = a.machine.poll_timeout().unwrap();
    assert!(look_at <= a.now + SECOND, "{look_at:?}");
}

/// While an owner holds the lock, a release on its way would only delay a renewal.
#[test]
fn an_abandoned_acquire_does_not_delay_a_renewal() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.sends().unwrap();
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
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

#[test]
fn a_key_is_handed_over_as_often_as_tokens_were_kept_free() {
    let mut a = Process::new();
    a.wants("first", Some(5 * SECOND));
    a.wants("next", Some(5 * SECOND));
    let Action::Acquire(ask) = a.sends().unwrap().action else {
        panic!()
    };
    a.answered(granted(20));
    for turn in 0..ask.spare_tokens {
        a.wants("next", Some(5 * SECOND));
        let token = 21 + turn;
        assert_eq!(
            a.leaves("former", true),
            ["former confirmed".to_owned(), format!("next has {token}")]
        );
    }
    assert!(a.leaves("last", true).is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

#[test]
fn a_caller_that_does_not_wait_is_refused_where_the_key_is_held() {
    let mut a = Process::holding("a");
    let mut call = call(options());
    call.options.wait = Wait::No;
    call.deadline = Some(a.now + SECOND);
    let said = a.says(|machine, env| machine.acquire(env, Arc::new(call), "b"));
    assert_eq!(said, ["b refused: busy"]);
    a.wants("c", Some(MS));
    assert_eq!(a.passes(2 * MS), ["c refused: busy"]);
}

#[test]
fn only_those_are_refused_at_once_whom_asking_again_cannot_help() {
    for (kind, refused) in [
        (StoreErrorKind::Conflict, &[][..]),
        (StoreErrorKind::Unreachable, &["soon refused: store"]),
        (
            StoreErrorKind::Schema,
            &["soon refused: store", "late refused: store"],
        ),
    ] {
        let mut a = Process::new();
        a.wants("soon", None);
        a.wants("late", Some(5 * SECOND));
        a.sends().unwrap();
        let said = a.says(|machine, env| machine.handle_answer(env, Err(StoreError::new(kind, "no"))));
        assert_eq!(said, refused, "{kind:?}");
    }
}

#[test]
fn a_manager_that_shuts_down_refuses_those_that_hold_no_other_lock_first() {
    let mut a = Process::holding("a");
    let mut nested = call(options());
    nested.nested = true;
    a.wants_with("nested", Some(5 * SECOND), nested);
    a.wants("outermost", Some(5 * SECOND));
    assert_eq!(a.says(Machine::refuse_outermost), ["outermost refused: shutdown"]);
    assert_eq!(a.says(Machine::stop), ["nested refused: shutdown"]);
}
