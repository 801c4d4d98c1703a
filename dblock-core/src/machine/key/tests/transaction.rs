//! A lease that a transaction of its owner keeps.

use super::*;

/// A process whose first caller, "a", holds the lock until its transaction ends.
fn kept() -> Process {
    let mut a = Process::holding("a");
    let ownership = a.ownership.clone().unwrap();
    let (kept, said) = a.step(|machine, env| machine.keep_in_transaction(env, &ownership));
    assert!(kept.is_ok() && said.is_empty());
    a
}

fn enters_again(a: &mut Process, lease_id: Uuid) -> Vec<String> {
    let call = Arc::new(call(options()));
    a.says(|machine, env| machine.enter_in_transaction(env, lease_id, call, "again"))
}

#[test]
fn no_ttl_ends_it_and_nothing_is_sent_while_the_body_runs() {
    let mut a = kept();
    let body = a.ownership.clone().unwrap();
    assert!(a.passes(1_000 * TTL).is_empty());
    assert_eq!(a.sends(), None, "nothing is renewed");
    assert_eq!(body.end_if_over(a.now).0, None);
    // The row says nothing new, so a nested call does not ask it.
    let confirm = a.confirm("nested");
    assert_eq!(
        a.says(|machine, env| machine.enter(env, &body, Some(confirm))),
        ["nested confirmed"]
    );
    assert_eq!(a.machine.holds(&body), 2);
}

#[test]
fn max_hold_ends_it() {
    let mut a = Process::holding_with("a", call(options().max_hold(60 * SECOND)));
    let body = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.keep_in_transaction(env, &body));
    a.passes(59 * SECOND);
    assert_eq!(body.ended(), None);
    a.passes(SECOND);
    assert_eq!(body.ended(), Some(LostReason::MaxHold));
}

#[test]
fn a_lease_that_has_ended_is_not_kept() {
    let mut a = Process::holding("a");
    a.passes(TTL);
    let body = a.ownership.clone().unwrap();
    assert!(
        a.step(|machine, env| machine.keep_in_transaction(env, &body))
            .0
            .is_err()
    );
}

/// The hold was added while the transaction wrote the release.
#[test]
fn a_lease_with_another_hold_is_not_kept() {
    let mut a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.enter(env, &body, None));
    assert!(
        a.step(|machine, env| machine.keep_in_transaction(env, &body))
            .0
            .is_err()
    );
}

#[test]
fn the_next_caller_asks_as_soon_as_the_commit_is_answered() {
    let mut a = kept();
    a.wants("b", Some(5 * SECOND));
    assert_eq!(a.sends(), None);
    let body = a.ownership.clone().unwrap();
    let said = a.says(|machine, env| machine.handle_transaction_over(env, &body));
    assert!(said.is_empty());
    assert!(a.notes.iter().any(|note| matches!(note, Note::Released(_))));
    assert_eq!(body.ended(), Some(LostReason::Released));
    assert!(
        matches!(a.sends().unwrap().action, Action::Acquire(_)),
        "no release is sent"
    );
}

/// Somebody else may have taken the key since the commit.
#[test]
fn a_release_that_comes_after_the_commit_is_no_loss() {
    for answer in [Outcome::Lost, released()] {
        let mut a = kept();
        a.leaves("a", true);
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        // For as long as the transaction lives.
        a.answered(Outcome::Skipped);
        a.passes(1_000 * TTL);
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        let said = a.says(|machine, env| machine.handle_answer(env, Ok(answer)));
        assert_eq!(said, Vec::<String>::new());
        assert!(matches!(a.notes[..], [Note::Released(_)]), "{:?}", a.notes);
        assert!(a.machine.is_idle());
    }
}

#[test]
fn a_wake_up_sends_the_release_at_once() {
    let mut a = kept();
    a.leaves("a", true);
    a.passes(MS);
    for _ in 0..12 {
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        a.answered(Outcome::Skipped);
        assert_eq!(a.sends(), None);
        a.passes(SECOND);
    }
    a.wants("b", Some(5 * SECOND));
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    a.says(Machine::handle_timeout);
    assert!(a.machine.wants_wake_ups());
    assert_eq!(a.sends(), None);
    a.says(Machine::handle_freed);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

#[test]
fn another_call_in_the_transaction_enters_again() {
    let mut a = kept();
    let first = a.ownership.clone().unwrap();
    assert_eq!(
        enters_again(&mut a, first.lease_id),
        ["again refused: row locked"],
        "the first is inside"
    );
    assert!(a.leaves("a", true).is_empty());
    a.passes(MS);
    a.sends().unwrap();
    let other = Uuid::from_u128(99);
    assert_eq!(enters_again(&mut a, other), ["again refused: row locked"]);
    let said = enters_again(&mut a, first.lease_id);
    assert_eq!(
        said,
        [
            format!("again has {}", first.fence_token),
            "a confirmed".to_owned()
        ]
    );
    // The release that was on its way found the row locked.
    a.answered(Outcome::Skipped);
    a.passes(TTL);
    assert_eq!(a.sends(), None);
    let again = a.ownership.clone().unwrap();
    assert_eq!(again.ended(), None);
    assert_eq!(first.ended(), Some(LostReason::Released));
    a.leaves("again", true);
    a.passes(MS);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
}

/// The connection broke.
#[test]
fn a_body_whose_transaction_has_ended_behind_its_back_is_stopped() {
    let mut a = kept();
    let lease_id = a.ownership.clone().unwrap().lease_id;
    a.leaves("a", true);
    a.passes(MS);
    a.sends().unwrap();
    enters_again(&mut a, lease_id);
    let again = a.ownership.clone().unwrap();
    a.answered(released());
    assert_eq!(again.ended(), Some(LostReason::Gone));
}

#[test]
fn without_a_transaction_nobody_enters_again() {
    let mut a = Process::holding("a");
    let lease_id = a.ownership.clone().unwrap().lease_id;
    a.leaves("a", false);
    assert_eq!(enters_again(&mut a, lease_id), ["again refused: row locked"]);
}

#[test]
fn it_is_kept_for_its_owner_and_left_when_that_has_gone() {
    let a = Process::holding("a");
    let body = a.ownership.clone().unwrap();
    assert!(!a.machine.is_kept_in_transaction(&body));
    let mut other = kept();
    assert!(!other.machine.is_kept_in_transaction(&body));
    let body = other.ownership.clone().unwrap();
    assert!(other.machine.is_kept_in_transaction(&body) && other.machine.left_in_transaction().is_none());
    other.leaves("a", true);
    let left = other.machine.left_in_transaction().unwrap();
    assert_eq!(
        (left.lease_id, left.fence_token, left.kept),
        (body.lease_id, 7, Kept::Lease)
    );
}
