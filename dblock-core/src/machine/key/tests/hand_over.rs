//! Local hand-over: who enters without the store, and until when.

use super::*;

/// A process whose owner has the lease for `ttl`, as an answer said that came after `time`. Tokens are kept free
/// for local hand-overs, and nobody waits.
fn owner(ttl: Duration, time: Duration) -> Process {
    let mut a = Process::new();
    a.wants_with("a", Some(60 * SECOND), call(options().ttl(ttl)));
    let other = a.wants("other", Some(60 * SECOND));
    a.sends().unwrap();
    a.now = a.now + time;
    assert_eq!(a.answered(Outcome::granted(7, ttl)), ["a has 7"]);
    assert!(a.says(|machine, env| machine.give_up(env, other)).is_empty());
    a
}

/// A caller comes while the owner's release is not sent yet. Returns whether it enters without the store.
fn enters(a: &mut Process, options: LockOptions) -> bool {
    let mut call = call(options);
    call.options.wait = Wait::For(60 * SECOND);
    let said = a.says(|machine, env| machine.acquire(env, Arc::new(call), "b"));
    if said.is_empty() {
        assert!(matches!(a.sends().unwrap().action, Action::Release));
        return false;
    }
    assert_eq!(said, ["a confirmed", "b has 8"]);
    true
}

#[test]
fn a_turn_ends_and_an_answer_begins_the_next_one() {
    for (later, handed_over) in [(99 * MS, true), (100 * MS, false)] {
        let mut a = owner(TTL, Duration::ZERO);
        assert!(a.leaves("a", true).is_empty());
        a.now = a.now + later;
        assert_eq!(enters(&mut a, options()), handed_over, "{later:?}");

        let mut a = owner(TTL, Duration::ZERO);
        a.passes(TTL / 2);
        a.sends().unwrap();
        assert!(a.answered(extended()).is_empty());
        assert!(a.leaves("a", true).is_empty());
        a.now = a.now + later;
        assert_eq!(
            enters(&mut a, options()),
            handed_over,
            "{later:?} after a renewal"
        );
    }
}

#[test]
fn the_next_owner_s_ttl_counts_from_when_it_enters() {
    let mut a = owner(TTL, Duration::ZERO);
    a.now = a.now + 50 * MS;
    assert!(a.leaves("a", true).is_empty());
    assert!(enters(&mut a, options().ttl(2 * SECOND)));
    let deadline = a.ownership.clone().unwrap().deadline();
    assert_eq!(deadline, Some((a.now + 2 * SECOND).before(100 * MS)));
}

/// Its owner's transaction may still be open, and the token that it has checked is in the row.
#[test]
fn a_lease_that_was_checked_in_a_transaction_is_not_handed_over() {
    let mut a = owner(TTL, Duration::ZERO);
    let (own, confirm) = (a.ownership.clone().unwrap(), a.confirm("p"));
    let said = a.says(|machine, env| machine.pin(env, &own, Some(confirm)));
    assert_eq!(said, ["p confirmed"]);
    assert!(a.leaves("a", true).is_empty());
    assert!(!enters(&mut a, options()));
}

#[test]
fn a_lease_is_handed_over_to_an_owner_that_renews_it_and_is_confirmed_for_long_enough() {
    for (options, handed_over) in [
        (options().ttl(TTL * 3 / 2), true),
        (options().ttl(TTL * 3 / 2 + MS), false),
        (options().renew(false), false),
    ] {
        let mut a = owner(TTL, Duration::ZERO);
        assert!(a.leaves("a", true).is_empty());
        assert_eq!(enters(&mut a, options.clone()), handed_over, "{options:?}");
    }
}

/// The margin of a long lease is long for an owner with a short ttl.
#[test]
fn a_lease_whose_deadline_has_come_is_not_handed_over() {
    let (ttl, deadline) = (30 * SECOND, 28_500 * MS);
    for (later, handed_over) in [(9 * MS, true), (10 * MS, false)] {
        let mut a = owner(ttl, 28_490 * MS);
        let begin = a.now.before(28_490 * MS);
        assert_eq!(a.ownership.clone().unwrap().deadline(), Some(begin + deadline));
        assert!(a.leaves("a", true).is_empty());
        a.now = a.now + later;
        let short = options().ttl(SECOND);
        assert_eq!(enters(&mut a, short), handed_over, "{later:?}");
    }
}
