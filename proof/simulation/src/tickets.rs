//! Tickets: a caller's lock goes into one, and callers of any process adopt it: one, two, or nobody.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::ownership::Ownership;
use dblock_core::{LockOptions, Wait};
use uuid::Uuid;

use crate::caller::{Asked, State};
use crate::plan::{MS, nanos};
use crate::show;
use crate::sometimes::Sometimes;
use crate::world::{What, World, tell};

#[derive(Debug)]
pub(crate) struct Ticket {
    key: usize,
    pub(crate) lease: Uuid,
    ttl: Duration,
    /// The row is the ticket's at least until then, once that is confirmed.
    until: u64,
    /// The caller that has adopted it.
    adopted_by: Option<usize>,
}

/// The ttl of those who adopt a ticket, in ms.
pub(crate) const ADOPTER_TTL: u64 = 2000;

impl World {
    /// The lock of a caller whose body has returned goes into a ticket. `false`: refused, because somebody shares it.
    pub(crate) fn put_into_ticket(&mut self, number: usize, ownership: &Arc<Ownership>) -> bool {
        let (process, key) = (self.callers[number].process, self.callers[number].key);
        let ttl = if self.plan.healthy {
            1000
        } else {
            self.tape.pick(&[3000, 1000, 10_000])
        };
        let ttl = Duration::from_millis(ttl);
        self.last_id += 1;
        let lease = show::lease_id(process, self.processes[process].incarnation, self.last_id);
        let due = std::mem::take(&mut self.callers[number].due);
        let confirm = self.ask(number, Asked::Leave, None);
        let refused = self.step(process, key, |machine, env| {
            // A guard that ends with a transaction is gone.
            machine.is_kept_in_transaction(ownership)
                || machine.transfer(env, ownership, lease, ttl, confirm).is_err()
        });
        if refused {
            self.callers[number].due = due;
            return false;
        }
        tell!(
            self,
            "P{process} caller {number} puts {} into a ticket, {}",
            self.keys[key],
            show::lease(lease)
        );
        let jumps = if self.plan.faults.clock_ahead > 0 {
            150 * MS
        } else {
            0
        };
        let until = self.now + nanos(ttl) - jumps;
        self.check_leave(number);
        self.callers[number].state = State::Leaving;
        self.callers[number].ticket = Some(self.tickets.len());
        self.tickets.push(Ticket {
            key,
            lease,
            ttl,
            until,
            adopted_by: None,
        });
        true
    }

    /// Its caller hears whether the row names the ticket.
    pub(crate) fn ticket_made(&mut self, number: usize, yes: bool) {
        let Some(at) = self.callers[number].ticket else {
            return;
        };
        let Ticket {
            key,
            lease,
            ttl,
            until,
            ..
        } = self.tickets[at];
        if !yes {
            let process = self.callers[number].process;
            self.step(process, key, |machine, env| {
                machine.give_up_ticket(env, lease, ttl);
            });
            return;
        }
        // It ends by itself if nobody adopts it.
        self.checks.excused.push((lease, u64::MAX));
        self.checks.keys[key].closed = Some((until, lease));
        for _ in 0..self.tape.pick(&[1, 2, 0]) {
            let delay = self.tape.pick(&[0, 10, 500, 2000, 5000]) * MS;
            self.after(delay, What::Adopt(at));
        }
    }

    /// A caller adopts a ticket.
    pub(crate) fn adopt(&mut self, at: usize) {
        let alive: Vec<usize> = (0..self.processes.len())
            .filter(|at| self.processes[*at].alive && !self.processes[*at].stopping)
            .collect();
        if alive.is_empty() {
            return;
        }
        let process = self.tape.pick(&alive);
        let Ticket { key, lease, .. } = self.tickets[at];
        let wait = Duration::from_secs(5);
        let mut options = LockOptions::new().ttl(Duration::from_millis(ADOPTER_TTL));
        options.wait = Wait::For(wait);
        let call = Call {
            deadline: Some(self.local(process) + wait),
            ..self.wants(options)
        };
        tell!(self, "{} is to be adopted", show::lease(lease));
        let adopter = self.callers.len();
        self.adopters.push((adopter, at));
        self.come(
            process,
            key,
            None,
            (false, None),
            call,
            |machine, env, call, to| machine.adopt(env, lease, call, to),
        );
        if self.callers[adopter].state == State::Waiting && self.tape.chance(self.plan.callers.give_up) {
            let delay = self.tape.pick(&[0, 1, 10, 100]) * MS;
            self.after(delay, What::GiveUp(adopter));
        }
    }

    /// A caller is about to enter. A ticket lets one caller in, and before that nobody else.
    pub(crate) fn check_adoption(&mut self, number: usize) {
        let adopts = self.adopters.iter().find(|(adopter, _)| *adopter == number);
        let Some((_, at)) = adopts else { return };
        let ticket = &mut self.tickets[*at];
        let lease = ticket.lease;
        if let Some(other) = ticket.adopted_by.replace(number) {
            self.fail(format!("callers {other} and {number} have adopted one ticket"));
        }
        let (process, key) = (self.callers[number].process, self.callers[number].key);
        let (giver, incarnation) = show::whose(lease);
        if self.processes[giver].incarnation != incarnation || !self.processes[giver].alive {
            self.came.note(Sometimes::TicketOutlivesItsGiver);
        }
        self.checks.keys[key].closed.take_if(|(_, by)| *by == lease);
        // It ends the turn that a caller of its process has.
        let now = self.local(process);
        for other in &self.live {
            let caller = &mut self.callers[*other];
            if let Some(taker) = &mut caller.taker
                && (caller.process, caller.key) == (process, key)
            {
                taker.turn_until = taker.turn_until.min(now);
            }
        }
    }
}
