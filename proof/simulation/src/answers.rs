//! The answers to callers.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::key::Confirm;
use dblock_core::machine::out::Unconfirmed;
use dblock_core::machine::ownership::Ownership;

use crate::caller::{Asked, State};
use crate::process::Reply;
use crate::show;
use crate::world::{What, World, tell};

/// Time limit of the store for an operation of the handle.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

impl World {
    pub(crate) fn reply(&mut self, process: usize, key: usize, reply: Reply) {
        match reply {
            Reply::Granted(waiter, ownership) => {
                self.processes[process].cells[key].entered_at = Some(self.now);
                if self.answered(waiter.to, Asked::Acquire) {
                    self.granted(process, key, waiter.to, ownership);
                }
            }
            Reply::Turn(waiter, turn) => self.turn(process, &waiter, turn),
            Reply::Refused(waiter, refusal) => {
                let number = waiter.to;
                if self.answered(number, Asked::Acquire) {
                    tell!(
                        self,
                        "P{process} caller {number} is refused: {}",
                        show::refusal(&refusal)
                    );
                    self.check_refusal(number, &refusal);
                    self.gone(number);
                }
            }
            Reply::Confirmed((number, asked), answer) => {
                match &answer {
                    Ok(()) => {}
                    Err(Unconfirmed::Lost(reason)) => {
                        tell!(self, "P{process} ticket of caller {number}: lost, {reason}");
                    }
                    Err(Unconfirmed::NoAnswer(_)) => {
                        tell!(self, "P{process} caller {number}: no answer in time");
                    }
                }
                self.confirmed(process, number, asked, answer.is_ok());
            }
        }
    }

    /// Whether the caller is still there for the answer. Checks that each question is answered only once.
    pub(crate) fn answered(&mut self, number: usize, asked: Asked) -> bool {
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
            return false;
        }
        if caller.state != state {
            self.fail(format!(
                "caller {number} is answered ({asked:?}) although it does not wait"
            ));
            return false;
        }
        caller.due[asked as usize] = None;
        true
    }

    pub(crate) fn granted(&mut self, process: usize, key: usize, number: usize, ownership: Arc<Ownership>) {
        tell!(
            self,
            "P{process} caller {number} enters {} with {} token {}, {:?} left",
            self.keys[key],
            show::lease(ownership.lease_id),
            ownership.fence_token,
            ownership.deadline().map(|end| end.since(self.local(process)))
        );
        self.check_adoption(number);
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

    fn confirmed(&mut self, process: usize, number: usize, asked: Asked, yes: bool) {
        if !self.answered(number, asked) {
            return;
        }
        match asked {
            Asked::Acquire | Asked::Extend => {}
            Asked::Leave => {
                self.check_left(number, yes);
                self.ticket_made(number, yes);
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
    pub(crate) fn ask(
        &mut self,
        number: usize,
        asked: Asked,
        limit: Option<Duration>,
    ) -> Confirm<(usize, Asked)> {
        let process = self.callers[number].process;
        let deadline = self.in_local(process, limit.unwrap_or(STORE_TIMEOUT));
        self.callers[number].due[asked as usize] = Some(deadline);
        Confirm {
            to: (number, asked),
            deadline,
        }
    }
}
