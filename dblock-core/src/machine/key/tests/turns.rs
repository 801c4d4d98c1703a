//! Callers that take the key in a transaction of their own.

use super::*;

const TURN: Duration = Duration::from_millis(2500);

/// A turn as its caller has it.
struct Given {
    waiter: Waiter<&'static str>,
    turn: Turn,
}

fn takes() -> Call {
    Call {
        takes: Takes::Alone,
        ..call(options())
    }
}

impl Process {
    /// A caller that can take the key. Returns its number, and what is said.
    fn wants_to_take(&mut self, ticket: &'static str, wait: Option<Duration>) -> (u64, Vec<String>) {
        let mut call = takes();
        call.options.wait = wait.map_or(Wait::No, Wait::For);
        call.since = self.now;
        call.deadline = Some(self.now + wait.unwrap_or(5 * SECOND));
        self.step(|machine, env| machine.acquire(env, Arc::new(call), ticket))
    }

    /// A process whose first caller has its turn.
    fn trying(ticket: &'static str) -> (Self, Given) {
        let mut process = Self::new();
        let (_, said) = process.wants_to_take(ticket, Some(5 * SECOND));
        assert_eq!(said, [format!("{ticket} may take")]);
        let given = process.given();
        (process, given)
    }

    /// The turn that was given last.
    fn given(&mut self) -> Given {
        let (waiter, turn) = self.turn.take().unwrap();
        Given { waiter, turn }
    }

    fn ends(&mut self, given: &Given) -> Vec<String> {
        let number = given.turn.number;
        self.says(|machine, env| machine.end_turn(env, number))
    }

    fn comes_back(&mut self, given: Given) -> Vec<String> {
        self.comes_back_after(given, Duration::ZERO)
    }

    fn comes_back_after(&mut self, given: Given, no_turns_for: Duration) -> Vec<String> {
        let Given { waiter, turn } = given;
        let call = Arc::new(Call {
            takes: Takes::No,
            ..(*waiter.call).clone()
        });
        self.says(|machine, env| machine.come_back(env, turn.number, call, waiter.to, no_turns_for))
    }

    /// The transaction has written the row. Returns whether the caller may go on.
    fn has_taken(&mut self, given: &Given, fence_token: i64) -> bool {
        let (Turn { number, lease_id }, call) = (given.turn, Arc::clone(&given.waiter.call));
        let (ownership, said) =
            self.step(|machine, env| machine.taken(env, number, lease_id, fence_token, call));
        assert!(said.is_empty(), "{said:?}");
        let taken = ownership.is_some();
        self.ownership = ownership.or(self.ownership.take());
        taken
    }

    /// The transaction is over, and the caller knows.
    fn is_over(&mut self) -> Vec<String> {
        let ownership = self.ownership.clone().unwrap();
        self.says(|machine, env| machine.handle_transaction_over(env, &ownership))
    }
}

/// A process whose first caller, "a", has taken the key.
fn taken() -> Process {
    let (mut a, given) = Process::trying("a");
    assert!(a.has_taken(&given, 7));
    a
}

fn acquires(request: Option<Request>) -> bool {
    request.is_some_and(|request| matches!(request.action, Action::Acquire(_)))
}

#[test]
fn a_key_is_taken_and_freed_without_a_request() {
    let (mut a, given) = Process::trying("a");
    assert_eq!(a.sends(), None);
    let machine = &a.machine;
    assert!(machine.is_busy() && machine.needs_grace() && !machine.is_idle());
    assert!(a.has_taken(&given, 7));
    let body = a.ownership.clone().unwrap();
    assert_eq!((body.lease_id, body.fence_token), (given.turn.lease_id, 7));
    assert!(a.machine.is_kept_in_transaction(&body));
    assert!(a.passes(1_000 * TTL).is_empty());
    assert_eq!(
        (a.sends(), body.end_if_over(a.now).0),
        (None, None),
        "no ttl runs"
    );
    assert!(a.is_over().is_empty());
    assert!(matches!(a.notes[..], [Note::Released(_)]), "{:?}", a.notes);
    assert_eq!(body.ended(), Some(LostReason::Released));
    a.passes(SECOND);
    assert_eq!(a.sends(), None);
    assert!(a.machine.is_idle());
}

#[test]
fn a_nested_call_enters_what_was_taken() {
    let mut a = taken();
    let (body, confirm) = (a.ownership.clone().unwrap(), a.confirm("nested"));
    let said = a.says(|machine, env| machine.enter(env, &body, Some(confirm)));
    assert_eq!(said, ["nested confirmed"]);
    assert_eq!(
        a.step(|machine, env| machine.close(env, &body)).0,
        Err(NotClosed::OtherHold),
        "the commit would free the key beside it"
    );
}

#[test]
fn max_hold_ends_what_was_taken() {
    let mut a = Process::new();
    let mut call = takes();
    call.options = call.options.max_hold(SECOND);
    a.says(|machine, env| machine.acquire(env, Arc::new(call), "a"));
    a.passes(SECOND);
    let given = a.given();
    assert!(a.has_taken(&given, 7), "it counts from the take");
    a.passes(999 * MS);
    let body = a.ownership.clone().unwrap();
    assert_eq!(body.ended(), None);
    a.passes(MS);
    assert_eq!(body.ended(), Some(LostReason::MaxHold));
}

#[test]
fn a_caller_that_waits_alone_has_the_next_turn() {
    let (mut a, given) = Process::trying("a");
    assert!(a.wants_to_take("b", Some(5 * SECOND)).1.is_empty());
    assert!(a.has_taken(&given, 7));
    assert_eq!(a.is_over(), ["b may take"]);
}

/// Where a transaction can end with a lease that is handed over without the store.
#[test]
fn callers_that_wait_together_get_a_lease() {
    let (mut a, given) = Process::trying("a");
    for ticket in ["b", "c"] {
        assert!(a.wants_to_take(ticket, Some(5 * SECOND)).1.is_empty());
    }
    assert_eq!(a.sends(), None, "one at a time");
    assert!(a.has_taken(&given, 7));
    assert!(a.passes(SECOND).is_empty());
    assert_eq!(a.sends(), None);
    assert!(a.is_over().is_empty());
    a.passes(10 * MS);
    assert!(acquires(a.sends()));
    assert!(a.wants_to_take("d", Some(5 * SECOND)).1.is_empty());
    assert_eq!(a.answered(granted(8)), ["b has 8"]);
}

#[test]
fn callers_that_share_no_lease_have_one_turn_after_the_other() {
    let first = || Call {
        takes: Takes::First,
        ..takes()
    };
    let mut a = Process::new();
    let said = ["a", "b", "c"].map(|ticket| {
        let call = Arc::new(first());
        let (_, said) = a.step(|machine, env| machine.acquire(env, call, ticket));
        said
    });
    assert_eq!(said.concat(), ["a may take"]);
    let given = a.given();
    assert_eq!(a.ends(&given), ["b may take"]);
}

#[test]
fn a_caller_that_comes_back_has_its_place() {
    let (mut a, first) = Process::trying("a");
    a.wants_to_take("b", Some(5 * SECOND));
    assert!(a.comes_back(first).is_empty());
    assert!(acquires(a.sends()));
    assert_eq!(a.answered(granted(7)), ["a has 7"]);
}

#[test]
fn a_caller_comes_back_for_a_lease_at_once() {
    let (mut a, given) = Process::trying("a");
    assert!(a.comes_back(given).is_empty());
    assert!(acquires(a.sends()));
    // Others wait for it.
    assert!(a.wants_to_take("b", Some(5 * SECOND)).1.is_empty());
    assert!(a.answered(queued_behind(7)).is_empty());
    assert_eq!(a.sends(), None);
}

#[test]
fn a_turn_is_over_after_a_while() {
    let (mut a, given) = Process::trying("a");
    a.wants_to_take("b", Some(5 * SECOND));
    assert_eq!(a.machine.poll_timeout(), Some(a.now + TURN));
    assert!(a.passes(2499 * MS).is_empty());
    assert_eq!(a.passes(MS), ["b may take"]);
    let next = a.given();
    assert!(!a.has_taken(&given, 7), "it is too late");
    assert!(a.has_taken(&next, 8));
}

#[test]
fn a_take_in_a_former_turn_does_not_count() {
    let (mut a, former) = Process::trying("a");
    assert!(a.ends(&former).is_empty());
    let (number, said) = a.wants_to_take("b", Some(5 * SECOND));
    assert_eq!(said, ["b may take"]);
    let given = a.given();
    assert!(!a.has_taken(&former, 7));
    assert_eq!(given.turn.number, number);
    let mut same_number = Given {
        waiter: former.waiter,
        turn: former.turn,
    };
    same_number.turn.number = number;
    assert!(!a.has_taken(&same_number, 7), "of a machine that was forgotten");
    assert!(a.has_taken(&given, 8), "the other one is still out");
}

#[test]
fn whoever_is_gone_has_no_turn() {
    let (mut a, given) = Process::trying("a");
    a.wants_to_take("b", Some(5 * SECOND));
    let number = given.turn.number;
    let said = a.says(|machine, env| machine.give_up(env, number));
    assert_eq!(said, ["b may take"]);
    assert!(!a.has_taken(&given, 7));
}

#[test]
fn nobody_takes_after_a_stop() {
    let (mut a, given) = Process::trying("a");
    let (_, said) = a.wants_to_take("b", Some(5 * SECOND));
    assert!(said.is_empty());
    assert!(
        a.says(Machine::refuse_outermost)
            .contains(&"b refused: shutdown".to_owned())
    );
    assert!(a.machine.needs_grace(), "it goes on until the stop");
    a.says(Machine::stop);
    assert!(!a.has_taken(&given, 7));
    assert!(!a.machine.is_busy());
}

#[test]
fn a_stop_ends_what_was_taken() {
    let mut a = taken();
    let body = a.ownership.clone().unwrap();
    a.says(Machine::stop);
    assert_eq!(body.ended(), Some(LostReason::Shutdown));
    a.leaves("a", false);
    a.passes(MS);
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(Outcome::Lost), ["a confirmed"]);
}

/// The store may be down.
#[test]
fn whoever_waits_for_a_turn_in_vain_hears_of_no_answer() {
    let (mut a, given) = Process::trying("a");
    a.wants_to_take("b", Some(SECOND));
    assert_eq!(a.passes(SECOND), ["b refused: no answer"]);
    a.passes(4 * SECOND);
    assert_eq!(a.comes_back(given), ["a refused: no answer"]);
}

/// The store may be down, which is not busy.
#[test]
fn who_does_not_wait_is_not_refused_while_another_one_tries() {
    let (mut a, given) = Process::trying("a");
    a.wants_to_take("b", None);
    assert!(a.passes(SECOND).is_empty());
    let Given { waiter, turn } = given;
    let said = a.says(|machine, env| machine.taken(env, turn.number, turn.lease_id, 8, waiter.call));
    assert_eq!(said, ["b refused: busy"]);

    let (mut a, _) = Process::trying("a");
    a.wants_to_take("b", None);
    assert_eq!(a.passes(2500 * MS), ["b may take"]);
}

#[test]
fn who_does_not_wait_is_refused_at_once_when_another_one_has_taken() {
    let mut a = taken();
    let (_, said) = a.wants_to_take("b", None);
    assert_eq!(said, ["b refused: busy"]);
}

/// A transaction keeps it, of another process or of this one.
#[test]
fn who_does_not_wait_is_refused_soon_when_the_row_is_locked() {
    let mut a = Process::new();
    a.wants("a", None);
    for _ in 0..3 {
        a.sends().unwrap();
        assert!(a.answered(Outcome::Skipped).is_empty());
        a.passes(8 * MS);
    }
    a.sends().unwrap();
    assert_eq!(a.answered(Outcome::Skipped), ["a refused: row locked"]);

    let mut a = taken();
    a.leaves("a", true);
    for pause in [1, 2, 4] {
        a.passes(pause * MS);
        a.sends().unwrap();
        a.answered(Outcome::Skipped);
    }
    a.wants("b", None);
    for _ in 0..2 {
        a.passes(8 * MS);
        a.sends().unwrap();
        a.answered(Outcome::Skipped);
    }
    assert_eq!(a.machine.poll_timeout(), Some(a.now + 4 * MS));
    assert_eq!(a.passes(4 * MS), ["b refused: row locked"]);
}

/// A statement of somebody's has it locked for a moment.
#[test]
fn a_row_that_is_locked_once_is_not_busy() {
    let mut a = taken();
    a.leaves("a", true);
    a.wants("b", None);
    a.passes(MS);
    a.sends().unwrap();
    a.passes(30 * MS);
    a.answered(released());
    a.sends().unwrap();
    assert!(a.answered(Outcome::Skipped).is_empty());
    a.passes(8 * MS);
    a.sends().unwrap();
    assert_eq!(a.answered(granted(9)), ["b has 9"]);
}

/// Only a lease that the engine asks for is known to be nobody else's.
#[test]
fn no_turn_is_given_while_something_of_the_process_may_be_in_the_row() {
    // An acquire of unknown outcome.
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.sends().unwrap();
    a.says(|machine, env| machine.handle_answer(env, Err(unknown())));
    let said = a.says(|machine, env| machine.give_up(env, 1));
    assert!(said.is_empty());
    assert!(a.wants_to_take("b", Some(5 * SECOND)).1.is_empty());
    assert!(matches!(a.sends().unwrap().action, Action::Release));
    assert_eq!(a.answered(released()), ["b may take"]);

    // A place as successor.
    let (mut a, _) = Process::queued();
    a.wants_to_take("b", Some(5 * SECOND));
    let said = a.says(|machine, env| machine.give_up(env, 1));
    assert!(said.is_empty(), "{said:?}");
    a.passes(SECOND);
    assert!(acquires(a.sends()));

    // The lease of a caller that enters in the same moment, in which it is also time to ask.
    let (mut a, lease) = Process::queued();
    a.wants_to_take("b", Some(5 * SECOND));
    a.now = a.now + SECOND;
    let said = a.says(|machine, env| machine.handle_passed_on(env, lease, 8));
    assert_eq!(said, ["a has 8"]);

    // A request on its way.
    let mut a = Process::new();
    a.wants("a", Some(5 * SECOND));
    a.sends().unwrap();
    a.says(|machine, env| machine.give_up(env, 1));
    assert!(a.wants_to_take("b", Some(5 * SECOND)).1.is_empty());
    assert_eq!(a.answered(granted(7)), ["b has 7"]);
}

#[test]
fn no_turn_is_given_before_the_clock_has_passed_the_ceiling() {
    let (mut a, given) = Process::trying("a");
    assert!(a.comes_back_after(given, SECOND).is_empty());
    assert!(acquires(a.sends()), "a lease has no such need");
    a.answered(granted(7));
    a.leaves("a", true);
    a.sends().unwrap();
    a.answered(released());
    a.passes(999 * MS);
    assert!(a.wants_to_take("b", Some(5 * SECOND)).1.is_empty());
    assert_eq!(a.passes(MS), ["b may take"]);
}

/// Nobody tells of the end of the transaction.
#[test]
fn what_was_left_in_a_transaction_is_asked_for_after_pauses_that_double() {
    for answer in [Outcome::Lost, Outcome::Released(Released::Before)] {
        let mut a = taken();
        assert!(a.leaves("a", true).is_empty());
        let mut pause = MS;
        for _ in 0..10 {
            assert_eq!(a.sends(), None);
            let at = a.machine.poll_timeout().unwrap();
            let pauses = at.since(a.now);
            assert!(
                pause.mul_f64(0.75) <= pauses && pauses <= pause.mul_f64(1.25),
                "{pauses:?}"
            );
            a.passes(pauses);
            assert!(matches!(a.sends().unwrap().action, Action::Release));
            a.answered(Outcome::Skipped);
            pause = (pause * 2).min(TTL / 20);
        }
        a.wants_to_take("b", Some(5 * SECOND));
        a.passes(pause.mul_f64(1.25));
        a.sends().unwrap();
        assert_eq!(a.answered(answer), ["a confirmed"]);
        assert!(matches!(a.notes[..], [Note::Released(_)]), "{:?}", a.notes);
        assert_eq!(a.passes(10 * MS), ["b may take"]);
    }
}

/// The end of a transaction of another process may be what is met each time.
#[test]
fn who_waits_for_a_transaction_that_was_left_asks_often() {
    let mut a = taken();
    a.leaves("a", true);
    a.wants_to_take("b", Some(60 * SECOND));
    for _ in 0..100 {
        let next = a.machine.poll_timeout().unwrap();
        assert!(next <= a.now + 8 * MS, "{next:?}");
        a.passes(next.since(a.now));
        a.sends().unwrap();
        a.answered(Outcome::Skipped);
    }
}

#[test]
fn a_caller_that_waited_for_the_key_says_so() {
    let mut a = taken();
    a.wants_to_take("b", Some(5 * SECOND));
    a.passes(SECOND);
    a.is_over();
    a.passes(10 * MS);
    let given = a.given();
    a.has_taken(&given, 8);
    let waited = |note: &Note| matches!(note, Note::Waited(_, time) if *time == SECOND + 10 * MS);
    assert!(a.notes.iter().any(waited), "{:?}", a.notes);
}

/// Takes the key for so long, and lets it go again.
fn take(a: &mut Process, length: Duration) -> Vec<String> {
    let given = a.given();
    assert!(a.has_taken(&given, 7));
    a.passes(length);
    a.is_over()
}

#[test]
fn a_process_that_takes_again_and_again_stands_back() {
    let mut a = Process::new();
    for _ in 0..5 {
        assert_eq!(a.wants_to_take("a", Some(5 * SECOND)).1, ["a may take"]);
        assert!(take(&mut a, 90 * MS).is_empty());
        assert!(!a.machine.is_idle(), "it remembers the former takes");
        a.passes(9 * MS);
    }
    assert!(a.wants_to_take("a", Some(5 * SECOND)).1.is_empty());
    assert_eq!(a.sends(), None, "nor does it ask for a lease");
    assert_eq!(a.machine.poll_timeout(), Some(a.now + MS));
    assert_eq!(a.passes(MS), ["a may take"], "another series begins");
    assert_eq!(take(&mut a, 90 * MS), Vec::<String>::new());
    assert_eq!(a.wants_to_take("a", Some(5 * SECOND)).1, ["a may take"]);
}

/// Its transaction kept the row locked, so nobody else is in the queue.
#[test]
fn a_process_that_has_found_the_row_locked_stands_back_sooner() {
    let mut a = Process::new();
    a.wants("a", Some(60 * SECOND));
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    a.passes(8 * MS);
    a.sends().unwrap();
    a.answered(granted(6));
    let body = a.ownership.clone().unwrap();
    let (kept, _) = a.step(|machine, env| machine.keep_in_transaction(env, &body));
    kept.unwrap();
    a.passes(90 * MS);
    a.is_over();
    for ticket in ["b", "c"] {
        assert!(a.wants_to_take(ticket, Some(5 * SECOND)).1.is_empty());
        assert_eq!(a.passes(10 * MS), [format!("{ticket} may take")]);
        take(&mut a, 90 * MS);
    }
    a.passes(5 * SECOND);
    for ticket in ["d", "e"] {
        assert_eq!(
            a.wants_to_take(ticket, Some(5 * SECOND)).1,
            [format!("{ticket} may take")]
        );
        take(&mut a, 90 * MS);
    }
}

#[test]
fn a_process_that_pauses_by_itself_need_not_stand_back() {
    let mut a = Process::new();
    for _ in 0..20 {
        assert_eq!(a.wants_to_take("a", Some(5 * SECOND)).1, ["a may take"]);
        take(&mut a, 90 * MS);
        a.passes(10 * MS);
        assert!(a.machine.is_idle());
    }
}

/// It must meet the moment in which another process stands back.
#[test]
fn a_caller_asks_often_for_a_locked_row() {
    let mut a = Process::new();
    a.wants("a", Some(90 * SECOND));
    let begin = a.now;
    while a.now.since(begin) < 60 * SECOND {
        a.sends().unwrap();
        a.answered(Outcome::Skipped);
        let next = a.machine.poll_timeout().unwrap();
        assert!(next <= a.now + 8 * MS, "{next:?}");
        a.passes(next.since(a.now));
    }
    a.sends().unwrap();
    a.answered(Outcome::Skipped);
    assert!(a.machine.poll_timeout().unwrap() > a.now + 8 * MS);
}
