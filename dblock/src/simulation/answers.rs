//! The answers to callers.

use std::sync::Arc;
use std::time::Duration;

use super::callers::{Asked, State, split, ticket};
use super::show;
use super::world::{What, World, tell};
use crate::engine::core::key::Confirm;
use crate::engine::core::out::Reply;
use crate::engine::core::ownership::Ownership;

/// Time limit of the store for an operation of the handle.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

impl World {
    pub(super) fn reply(&mut self, process: usize, key: usize, reply: Reply<u32>) {
        match reply {
            Reply::Granted(waiter, ownership) => {
                if let Some((number, _)) = self.answered(waiter.ticket) {
                    self.granted(process, key, number, ownership);
                }
            }
            Reply::Refused(waiter, refusal) => {
                if let Some((number, _)) = self.answered(waiter.ticket) {
                    tell!(
                        self,
                        "P{process} caller {number} is refused: {}",
                        show::refusal(&refusal)
                    );
                    self.check_refusal(number, &refusal);
                    self.gone(number);
                }
            }
            Reply::Confirmed(ticket) => self.confirmed(process, ticket, true),
            Reply::Lost(ticket, reason) => {
                tell!(
                    self,
                    "P{process} ticket of caller {}: lost, {reason}",
                    split(ticket).0
                );
                self.confirmed(process, ticket, false);
            }
            Reply::Unconfirmed(ticket, _) => {
                tell!(self, "P{process} caller {}: no answer in time", split(ticket).0);
                self.confirmed(process, ticket, false);
            }
        }
    }

    /// The caller of a ticket, and what it asked for. Checks that each ticket is answered only once.
    fn answered(&mut self, ticket: u32) -> Option<(usize, Asked)> {
        let (number, asked) = split(ticket);
        let caller = &mut self.callers[number];
        let state = match asked {
            Asked::Acquire => State::Waiting,
            Asked::Enter | Asked::Pin | Asked::Extend => State::Inside,
            Asked::Leave => State::Leaving,
        };
        if caller.state == State::Gone && asked != Asked::Acquire
            || caller.state == State::Leaving && asked != Asked::Leave
        {
            // The caller was dropped meanwhile.
            return None;
        }
        if caller.state != state {
            self.fail(format!(
                "caller {number} is answered ({asked:?}) although it does not wait"
            ));
            return None;
        }
        caller.due[asked as usize] = None;
        Some((number, asked))
    }

    fn granted(&mut self, process: usize, key: usize, number: usize, ownership: Arc<Ownership>) {
        tell!(
            self,
            "P{process} caller {number} enters {} with {} token {}, {:?} left",
            self.keys[key],
            show::lease(ownership.lease_id),
            ownership.fence_token,
            ownership.deadline().map(|end| end.since(self.local(process)))
        );
        self.check_entry(process, key, number, &ownership);
        let entered = self.local(process);
        let caller = &mut self.callers[number];
        caller.entered = entered;
        caller.state = State::Inside;
        caller.holds = 1;
        let (token, lease) = (ownership.fence_token, ownership.lease_id);
        caller.ownership = Some(ownership);
        self.checks.keys[key].runs.granted(token, lease);
        if self.begin_run(number) {
            return;
        }
        let probe = self.callers[number].task.is_none();
        let delay = if probe { 0 } else { self.section() };
        self.after(delay, What::Body(number));
    }

    fn confirmed(&mut self, process: usize, ticket: u32, yes: bool) {
        let Some((number, asked)) = self.answered(ticket) else {
            return;
        };
        match asked {
            Asked::Acquire | Asked::Extend => {}
            Asked::Leave => {
                self.check_left(number, yes);
                self.gone(number);
            }
            Asked::Enter if !yes => {
                // The hold was not confirmed, so it is dropped.
                self.after(0, What::DropNested(number));
            }
            Asked::Enter => {
                self.callers[number].entering = false;
                tell!(self, "P{process} caller {number} has entered again");
            }
            Asked::Pin => {
                if yes {
                    self.callers[number].pinned = true;
                    let delay = self.delay();
                    self.after(delay, What::Verify(number));
                }
            }
        }
    }

    /// Asks for a confirmation.
    pub(super) fn ask(&mut self, number: usize, asked: Asked, limit: Option<Duration>) -> Confirm<u32> {
        let process = self.callers[number].process;
        let deadline = self.in_local(process, limit.unwrap_or(STORE_TIMEOUT));
        self.callers[number].due[asked as usize] = Some(deadline);
        Confirm {
            ticket: ticket(number, asked),
            deadline,
        }
    }
}
