//! Leases on their way from one process to another.

use super::*;
use crate::store::Transfer;

const TICKET: Uuid = Uuid::from_u128(0x0071_C3E7);

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new(kind, "the store says")
}

impl Process {
    /// A caller adopts the ticket. Returns its number, and what was said at once.
    fn adopts(&mut self, to: &'static str, call: Call) -> (u64, Vec<String>) {
        let deadline = Some(self.now + 5 * SECOND);
        let call = Arc::new(Call { deadline, ..call });
        self.step(|machine, env| machine.adopt(env, TICKET, call, to))
    }

    /// The lease that the ticket's is to be passed on to.
    fn asks_for_ticket(&mut self) -> Option<Uuid> {
        let request = self.sends()?;
        let Action::Transfer(transfer) = &request.action else {
            panic!("{request:?}");
        };
        assert_eq!((request.lease_id, transfer.ttl), (TICKET, TTL));
        Some(transfer.to)
    }

    /// The lease that is released by its id, because nobody has it.
    fn releases(&mut self) -> Option<Uuid> {
        let request = self.sends()?;
        assert_eq!(request.action, Action::Release);
        Some(request.lease_id)
    }

    fn fails(&mut self, kind: StoreErrorKind) -> Vec<String> {
        self.says(|machine, env| machine.handle_answer(env, Err(error(kind))))
    }
}

/// A process whose caller has asked for the ticket, the caller's number, and its lease.
fn adopting() -> (Process, u64, Uuid) {
    let mut a = Process::new();
    let (number, said) = a.adopts("a", call(options()));
    assert!(said.is_empty(), "{said:?}");
    let lease = a.asks_for_ticket().unwrap();
    (a, number, lease)
}

#[test]
fn a_ticket_is_asked_for_with_one_lease_until_that_is_answered() {
    let (mut a, _, lease) = adopting();
    for kind in [
        StoreErrorKind::Interrupted,
        StoreErrorKind::Unreachable,
        StoreErrorKind::Conflict,
    ] {
        assert!(a.fails(kind).is_empty());
        assert_eq!(a.asks_for_ticket(), None, "it pauses");
        a.passes(100 * MS);
        assert_eq!(a.asks_for_ticket(), Some(lease));
    }
    assert!(a.answered(Outcome::Skipped).is_empty());
    a.passes(100 * MS);
    assert_eq!(a.asks_for_ticket(), Some(lease));
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
    assert_eq!(a.ownership.clone().unwrap().lease_id, lease);
    a.leaves("a", true);
    assert_eq!(a.releases(), Some(lease));
}

#[test]
fn the_pauses_between_asks_grow() {
    let (mut a, ..) = adopting();
    let mut pauses = Vec::new();
    for _ in 0..9 {
        a.fails(StoreErrorKind::Unreachable);
        let failed = a.now;
        while a.asks_for_ticket().is_none() {
            a.passes(MS);
        }
        pauses.push(a.now.since(failed).as_millis());
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
}

#[test]
fn of_two_who_adopt_one_ticket_one_gets_it() {
    let (mut a, _, lease) = adopting();
    let (number, _) = a.adopts("b", call(options()));
    a.adopts("c", call(options()));
    a.says(|machine, env| machine.give_up(env, number));
    assert_eq!(a.answered(granted(7)), ["a has 7", "c refused: ticket over"]);
    assert_eq!(a.ownership.clone().unwrap().lease_id, lease);
    a.leaves("a", true);
    assert_eq!(a.releases(), Some(lease));
    a.answered(released());
    assert_eq!(a.sends(), None, "the others have sent nothing");
}

#[test]
fn a_key_that_this_process_holds_has_no_ticket() {
    let mut a = Process::holding("a");
    assert_eq!(a.adopts("b", call(options())).1, ["b refused: ticket over"]);
    assert_eq!(a.sends(), None);
}

/// An operator may have revoked it: then the row still names it.
#[test]
fn a_ticket_that_is_over_is_released_once() {
    for answer in [Outcome::Lost, released()] {
        let (mut a, ..) = adopting();
        assert_eq!(a.answered(Outcome::Lost), ["a refused: ticket over"]);
        assert_eq!(a.releases(), Some(TICKET));
        a.answered(answer);
        a.passes(60 * SECOND);
        assert_eq!(a.sends(), None);
    }
}

#[test]
fn a_row_that_stays_locked_is_told_at_the_deadline() {
    let (mut a, ..) = adopting();
    a.answered(Outcome::Skipped);
    assert_eq!(a.passes(5 * SECOND), ["a refused: row locked"]);
}

/// Its transaction would write the row beside whoever has adopted.
#[test]
fn a_turn_to_take_is_over_when_a_ticket_is_adopted() {
    let (mut a, ..) = adopting();
    let taker = Arc::new(Call {
        takes: Takes::First,
        deadline: Some(a.now + 60 * SECOND),
        ..call(options())
    });
    let asks = Arc::clone(&taker);
    let (number, _) = a.step(|machine, env| machine.acquire(env, asks, "b"));
    assert_eq!(a.answered(Outcome::Skipped), ["b may take"]);
    let turn = a.turn.take().unwrap().1;
    a.passes(100 * MS);
    a.asks_for_ticket().unwrap();
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
    let too_late = a.step(|machine, env| machine.taken(env, number, turn.lease_id, 9, taker));
    assert!(too_late.0.is_none(), "it would replace a");
}

/// The row may name the lease of a caller that got no answer.
#[test]
fn the_lease_of_a_caller_that_was_refused_is_released() {
    for kind in [
        StoreErrorKind::Unsupported,
        StoreErrorKind::Refused,
        StoreErrorKind::Schema,
    ] {
        let (mut a, _, lease) = adopting();
        assert_eq!(a.fails(kind), ["a refused: store"]);
        assert_eq!(a.releases(), Some(lease));
    }
}

#[test]
fn a_caller_hears_at_its_deadline_what_the_store_said() {
    let (mut a, _, lease) = adopting();
    assert!(a.passes(Duration::from_millis(4999)).is_empty());
    assert_eq!(a.passes(MS), ["a refused: no answer"]);
    assert!(a.answered(granted(7)).is_empty(), "it is nobody's");
    assert_eq!(a.releases(), Some(lease));

    let (mut a, ..) = adopting();
    a.fails(StoreErrorKind::Unreachable);
    assert_eq!(a.passes(5 * SECOND), ["a refused: store"]);
}

#[test]
fn the_lease_of_a_caller_that_is_gone_is_released() {
    let (mut a, number, lease) = adopting();
    a.says(|machine, env| machine.give_up(env, number));
    assert!(a.answered(granted(7)).is_empty());
    assert_eq!(a.releases(), Some(lease));

    let mut a = Process::new();
    let (number, _) = a.adopts("a", call(options()));
    a.says(|machine, env| machine.give_up(env, number));
    assert_eq!(a.sends(), None, "nothing was sent");
}

#[test]
fn a_grant_that_comes_at_its_end_is_none() {
    let (mut a, _, lease) = adopting();
    a.passes(2 * SECOND);
    let late = Outcome::granted(7, 2 * SECOND + TTL / 20);
    assert_eq!(a.answered(late), ["a refused: no answer"]);
    assert_eq!(a.releases(), Some(lease));
}

#[test]
fn a_shutdown_refuses_who_holds_nothing_and_then_all() {
    let (mut a, _, lease) = adopting();
    let nested = Call {
        nested: true,
        ..call(options())
    };
    a.adopts("b", nested);
    assert_eq!(a.says(Machine::refuse_outermost), ["a refused: shutdown"]);
    a.answered(granted(7));
    assert_eq!(a.releases(), Some(lease));
    assert_eq!(a.says(Machine::stop), ["b refused: shutdown"]);
}

#[test]
fn a_place_in_the_row_is_given_back_by_whoever_adopts() {
    let (mut a, place) = Process::queued();
    a.adopts("b", call(options()));
    let lease = a.asks_for_ticket().unwrap();
    assert_eq!(a.answered(granted(8)), ["b has 8"]);
    assert_ne!(lease, place);
    a.leaves("b", true);
    assert_eq!(a.releases(), Some(lease), "or its own other caller has entered");
    a.answered(released());
    assert_eq!(a.releases(), Some(place));
}

// ── The lease becomes a ticket ───────────────────────────────────────────────────────────────────────

fn becomes_a_ticket(a: &mut Process, to: &'static str) -> (Result<Option<Duration>, NotClosed>, Vec<String>) {
    let (ownership, confirm) = (a.ownership.clone().unwrap(), a.confirm(to));
    a.step(|machine, env| machine.transfer(env, &ownership, TICKET, 4 * SECOND, confirm))
}

fn to_the_ticket(request: Option<Request>) -> bool {
    match request.unwrap().action {
        Action::Transfer(Transfer { to, ttl, .. }) => (to, ttl) == (TICKET, 4 * SECOND),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lease_is_passed_on_to_one_ticket_until_that_is_answered() {
    let mut a = Process::holding("a");
    a.wants("b", Some(60 * SECOND));
    a.now = a.now + SECOND;
    let (held_for, said) = becomes_a_ticket(&mut a, "a");
    assert_eq!(held_for, Ok(Some(SECOND)));
    assert!(said.is_empty(), "neither confirmed, nor has b entered: {said:?}");
    assert!(to_the_ticket(a.sends()));
    assert!(a.fails(StoreErrorKind::Interrupted).is_empty());
    a.passes(SECOND);
    assert!(to_the_ticket(a.sends()));
    assert_eq!(a.answered(granted(8)), ["a confirmed"]);
    a.passes(100 * MS);
    assert!(matches!(a.sends().unwrap().action, Action::Acquire(_)), "b asks");
}

#[test]
fn a_lease_with_another_hold_becomes_no_ticket() {
    let mut a = Process::holding("a");
    let ownership = a.ownership.clone().unwrap();
    a.says(|machine, env| machine.enter(env, &ownership, None));
    assert_eq!(becomes_a_ticket(&mut a, "a").0, Err(NotClosed::OtherHold));
}

#[test]
fn a_lease_that_is_over_becomes_no_ticket() {
    let mut a = Process::holding("a");
    a.passes(TTL);
    let over = NotClosed::Over(crate::LostReason::Expired);
    assert_eq!(becomes_a_ticket(&mut a, "a").0, Err(over));
}

#[test]
fn a_store_without_tickets_releases_the_lease() {
    let mut a = Process::holding("a");
    becomes_a_ticket(&mut a, "a").0.unwrap();
    assert!(to_the_ticket(a.sends()));
    a.fails(StoreErrorKind::Unsupported);
    a.passes(SECOND);
    assert_eq!(a.sends().unwrap().action, Action::Release);
}

/// The row may name the lease of the ticket, or be made to by the request that is on its way.
#[test]
fn a_ticket_that_nobody_has_is_released() {
    let mut a = Process::holding("a");
    becomes_a_ticket(&mut a, "a").0.unwrap();
    assert!(to_the_ticket(a.sends()));
    a.says(|machine, env| machine.give_up_ticket(env, TICKET, 4 * SECOND));
    let own = a.ownership.clone().unwrap().lease_id;
    a.fails(StoreErrorKind::Interrupted);
    a.passes(SECOND);
    assert_eq!(a.releases(), Some(own), "no second request for the ticket");
    a.answered(Outcome::Lost);
    assert_eq!(a.releases(), Some(TICKET));
    a.answered(Outcome::Lost);
    // The first request may be carried out while the lease that it is for lives.
    a.passes(2 * TTL);
    assert_eq!(a.releases(), Some(TICKET));
    a.answered(Outcome::Lost);
    a.passes(60 * SECOND);
    assert_eq!(a.sends(), None);

    let mut a = Process::holding("a");
    becomes_a_ticket(&mut a, "a").0.unwrap();
    assert!(to_the_ticket(a.sends()));
    assert_eq!(a.answered(granted(8)), ["a confirmed"]);
    a.says(|machine, env| machine.give_up_ticket(env, TICKET, 4 * SECOND));
    assert_eq!(a.releases(), Some(TICKET), "its caller has not heard of it");
    a.answered(released());
    a.passes(60 * SECOND);
    assert_eq!(a.sends(), None);
}

/// The row still names a lease that an operator has revoked.
#[test]
fn a_revoked_lease_that_becomes_no_ticket_is_released() {
    let mut a = Process::holding("a");
    becomes_a_ticket(&mut a, "a").0.unwrap();
    assert!(to_the_ticket(a.sends()));
    assert_eq!(a.answered(Outcome::Lost), ["a lost: Gone"]);
    let own = a.ownership.clone().unwrap().lease_id;
    assert_eq!(a.releases(), Some(own));
    a.answered(released());
    assert_eq!(a.sends(), None);
}

#[test]
fn a_request_does_not_show_the_secret() {
    let mut a = Process::holding("a");
    becomes_a_ticket(&mut a, "a").0.unwrap();
    let into = a.sends().unwrap();
    let mut b = Process::new();
    b.adopts("b", call(options()));
    let out_of = b.sends().unwrap();
    for shown in [
        format!("{into:?}"),
        format!("{out_of:?}"),
        format!("{:?}", b.machine),
    ] {
        assert!(!shown.contains(&TICKET.to_string()), "{shown}");
    }
}
