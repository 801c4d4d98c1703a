//! Sequences of events, and what the machine wants done after each.

mod asking;
mod begun;
mod hand_over;
mod held;
mod lease;
mod shared;
mod successor;
mod tickets;
mod transaction;
mod turns;

use std::time::Duration;

use uuid::Uuid;

use super::*;
use crate::machine::call::Takes;
use crate::machine::out::{Refusal, Turn};
use crate::options::{LockOptions, Wait};
use crate::store::{Action, Holder, Outcome, Released, Request, StoreError, StoreErrorKind};

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
    machine: Machine<&'static str, &'static str>,
    now: Time,
    listening: bool,
    numbers: Numbers,
    ownership: Option<Arc<Ownership>>,
    turn: Option<(Waiter<&'static str>, Turn)>,
    /// The notes of the last step.
    notes: Vec<Note>,
}

fn call(options: LockOptions) -> Call {
    Call {
        owner: Uuid::now_v7(),
        holder: "h".into(),
        options,
        since: Time::from_nanos(0),
        deadline: None,
        nested: false,
        takes: Takes::No,
        begin: None,
        tells_wait: None,
    }
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL)
}

impl Process {
    fn new() -> Self {
        Self {
            machine: Machine::new(Key::new(None, "k").unwrap()),
            now: Time::from_nanos(0) + 100 * SECOND,
            listening: true,
            numbers: Numbers(0),
            ownership: None,
            turn: None,
            notes: Vec::new(),
        }
    }

    /// A call of the machine. Returns its answer, and the reply to each caller.
    fn step<R>(
        &mut self,
        does: impl FnOnce(&mut Machine<&'static str, &'static str>, &mut Env<'_>) -> R,
    ) -> (R, Vec<String>) {
        let mut env = Env {
            now: self.now,
            wake_ups: true,
            listening: self.listening,
            hand_over: true,
            random: &mut self.numbers,
        };
        let answer = does(&mut self.machine, &mut env);
        self.notes = self.machine.poll_notes();
        if let Some(by) = self.machine.must_look_by() {
            let looks = self.machine.poll_timeout();
            assert!(
                looks.is_some_and(|at| at <= by),
                "{by:?} passes before anybody looks"
            );
        }
        let mut said = Vec::new();
        for reply in self.machine.poll_replies() {
            said.push(match reply {
                Reply::Granted(waiter, ownership) => {
                    let text = format!("{} has {}", waiter.to, ownership.fence_token);
                    self.ownership = Some(ownership);
                    text
                }
                Reply::Turn(waiter, turn) => {
                    let text = format!("{} may take", waiter.to);
                    self.turn = Some((waiter, turn));
                    text
                }
                Reply::Refused(waiter, refusal) => {
                    let why = match refusal {
                        Refusal::Busy(_) => "busy",
                        Refusal::RowLocked => "row locked",
                        Refusal::TicketOver => "ticket over",
                        Refusal::NoAnswer => "no answer",
                        Refusal::Store(_) => "store",
                        Refusal::Shutdown => "shutdown",
                    };
                    format!("{} refused: {why}", waiter.to)
                }
                Reply::Confirmed(to, Ok(())) => format!("{to} confirmed"),
                Reply::Confirmed(to, Err(Unconfirmed::Lost(reason))) => format!("{to} lost: {reason:?}"),
                Reply::Confirmed(to, Err(Unconfirmed::NoAnswer(_))) => format!("{to} unconfirmed"),
            });
        }
        (answer, said)
    }

    fn says<R>(
        &mut self,
        does: impl FnOnce(&mut Machine<&'static str, &'static str>, &mut Env<'_>) -> R,
    ) -> Vec<String> {
        self.step(does).1
    }

    fn wants(&mut self, ticket: &'static str, wait: Option<Duration>) -> u64 {
        self.wants_with(ticket, wait, call(options()))
    }

    fn wants_with(&mut self, ticket: &'static str, wait: Option<Duration>, mut call: Call) -> u64 {
        call.options.wait = wait.map_or(Wait::No, Wait::For);
        call.deadline = Some(self.now + wait.unwrap_or(5 * SECOND));
        let (number, said) = self.step(|machine, env| machine.acquire(env, Arc::new(call), ticket));
        assert!(said.is_empty(), "{said:?}");
        number
    }

    fn sends(&mut self) -> Option<Request> {
        let any = &[Kind::Extend, Kind::Release, Kind::Acquire];
        let transmit = self.step(|machine, env| machine.poll_transmit(env, any)).0;
        transmit.map(|transmit| transmit.request)
    }

    fn answered(&mut self, outcome: Outcome) -> Vec<String> {
        self.says(|machine, env| machine.handle_answer(env, Ok(outcome)))
    }

    fn passes(&mut self, time: Duration) -> Vec<String> {
        self.now = self.now + time;
        self.says(Machine::handle_timeout)
    }

    fn leaves(&mut self, ticket: &'static str, returned: bool) -> Vec<String> {
        let (ownership, confirm) = (self.ownership.clone().unwrap(), self.confirm(ticket));
        self.says(|machine, env| machine.leave(env, &ownership, returned, Some(confirm)))
    }

    /// A caller that waits for a confirmation from now on.
    fn confirm(&self, ticket: &'static str) -> Confirm<&'static str> {
        Confirm {
            to: ticket,
            deadline: self.now + 5 * SECOND,
        }
    }

    /// A process whose first caller holds the lock.
    fn holding(ticket: &'static str) -> Self {
        Self::holding_with(ticket, call(options()))
    }

    fn holding_with(ticket: &'static str, call: Call) -> Self {
        let mut process = Self::new();
        process.wants_with(ticket, Some(5 * SECOND), call);
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
    Outcome::granted(fence_token, TTL)
}

fn extended() -> Outcome {
    Outcome::extended(TTL)
}

fn released() -> Outcome {
    Outcome::Released(Released::Freed)
}

fn holder(fence_token: i64) -> Holder {
    Holder::new(Uuid::nil(), "other", fence_token, Some(20 * SECOND))
}

fn queued_behind(fence_token: i64) -> Outcome {
    Outcome::queued(holder(fence_token), 3 * SECOND)
}

fn unknown() -> StoreError {
    StoreError::new(StoreErrorKind::Interrupted, "nobody knows")
}
