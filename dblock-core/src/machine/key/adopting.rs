//! Callers that adopt a ticket. The row is held by the ticket's lease, and passed on to a lease of the
//! caller's. They stand outside the wait queue, whose callers cannot enter before the ticket is over.
//!
//! - *A caller asks with one lease until it is answered.* So an answer that was lost is given again, and a
//!   ticket is adopted once.
//! - *The lease is for this caller only.* If the caller has gone, its lease is abandoned.
//! - *A place as successor that this process has is given back* when a caller enters. The row keeps it until
//!   it lapses.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Machine;
use super::abandoned::Abandoned;
use super::asking::LastAnswer;
use super::held::{Grant, Held, Times};
use super::requests::OnItsWay;
use crate::machine::call::Call;
use crate::machine::env::{Env, Time};
use crate::machine::out::{Refusal, Reply, Waiter};
use crate::store::{Action, Outcome, StoreError, Transfer};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A caller that adopts a ticket.
pub(super) struct Adoption<A> {
    pub(super) number: u64,
    waiter: Waiter<A>,
    /// The ticket's lease, and the caller's.
    ticket: Uuid,
    lease_id: Uuid,
    /// A request was sent: the row may name the caller's lease.
    sent: bool,
    pub(super) retry_at: Time,
    pause: Duration,
    /// What the last answer was, if it decided nothing.
    last: Option<LastAnswer>,
}

/// Without the ticket's lease, which is its secret.
impl<A> fmt::Debug for Adoption<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adoption")
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

impl<A> Adoption<A> {
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiter.call.deadline
    }

    /// The request, for the ticket's lease. It is on its way from here on.
    pub(super) fn send(&mut self) -> (Uuid, Action) {
        self.sent = true;
        let call = &self.waiter.call;
        let transfer = Transfer::new(
            self.lease_id,
            call.owner,
            call.options.ttl,
            Arc::clone(&call.holder),
        );
        (self.ticket, Action::Transfer(transfer))
    }
}

impl<A, C> Machine<A, C> {
    /// A caller adopts the ticket with this lease, and wants its answer at `to`. Returns its number.
    pub fn adopt(&mut self, env: &mut Env<'_>, ticket: Uuid, call: Arc<Call>, to: A) -> u64 {
        self.during(env, |machine, env| {
            let number = machine.queue.next_number();
            let since = env.now;
            machine.adopting.push(Adoption {
                number,
                waiter: Waiter { call, since, to },
                ticket,
                lease_id: env.random.lease_id(),
                sent: false,
                retry_at: since,
                pause: FIRST_PAUSE,
                last: None,
            });
            number
        })
    }

    /// The adoption to ask for now.
    pub(super) fn next_adoption(&self, now: Time) -> Option<u64> {
        let due = self.adopting.iter().find(|adoption| adoption.retry_at <= now);
        due.filter(|_| self.held.is_none())
            .map(|adoption| adoption.number)
    }

    /// Refuses the adoptions whose timeout has passed, and those of a key that this process holds: its row does
    /// not name a ticket.
    pub(super) fn refuse_adoptions(&mut self, now: Time) {
        if self.adopting.is_empty() {
            return;
        }
        let is_held = self.held.as_ref().is_some_and(Held::is_held);
        let is_over = |adoption: &mut Adoption<A>| {
            is_held || adoption.deadline().is_some_and(|deadline| deadline <= now)
        };
        let over: Vec<_> = self.adopting.extract_if(.., is_over).collect();
        for adoption in over {
            let refusal = if is_held {
                Refusal::TicketOver
            } else {
                match &adoption.last {
                    Some(LastAnswer::Failed(error)) => Refusal::Store(error.clone()),
                    Some(_) => Refusal::RowLocked,
                    None => Refusal::NoAnswer,
                }
            };
            self.refuse_adoption(adoption, refusal, now);
        }
    }

    /// At a shutdown: all, or those that hold no other lock.
    pub(super) fn refuse_all_adoptions(&mut self, nested_too: bool, now: Time) {
        let is_over = |adoption: &mut Adoption<A>| nested_too || !adoption.waiter.call.nested;
        let over: Vec<_> = self.adopting.extract_if(.., is_over).collect();
        for adoption in over {
            self.refuse_adoption(adoption, Refusal::Shutdown, now);
        }
    }

    fn refuse_adoption(&mut self, adoption: Adoption<A>, refusal: Refusal, now: Time) {
        self.abandon_adoption(&adoption, now);
        self.reply(Reply::Refused(adoption.waiter, refusal));
    }

    /// The caller with this number has gone.
    pub(super) fn give_up_adoption(&mut self, number: u64, now: Time) {
        if let Some(adoption) = self.take_adoption(number) {
            self.abandon_adoption(&adoption, now);
        }
    }

    fn abandon_adoption(&mut self, adoption: &Adoption<A>, now: Time) {
        if adoption.sent {
            let ttl = adoption.waiter.call.options.ttl;
            self.abandoned.push(Abandoned::new(adoption.lease_id, ttl, now));
        }
    }

    fn take_adoption(&mut self, number: u64) -> Option<Adoption<A>> {
        let place = self
            .adopting
            .iter()
            .position(|adoption| adoption.number == number)?;
        Some(self.adopting.remove(place))
    }

    /// Applies the answer to the adoption with this number. If its caller has gone, its lease is abandoned
    /// already.
    pub(super) fn apply_to_adoption(
        &mut self,
        sent: &OnItsWay,
        number: u64,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let Some(mut adoption) = self.take_adoption(number) else {
            return;
        };
        let refusal = match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                wanted,
                ..
            }) if self.held.is_none() => {
                let call = &adoption.waiter.call;
                let grant = Grant {
                    lease_id: adoption.lease_id,
                    fence_token,
                    spare_tokens: 0,
                    times: Times {
                        store_end: sent.sent_at + remaining,
                        over_at: env.now + remaining,
                        length: call.options.ttl,
                        since: sent.sent_at,
                    },
                    row_owner: Some(call.owner),
                    wanted,
                    limit: None,
                };
                let deadline = grant.times.deadline(call.options.ttl);
                if env.now < deadline {
                    // A caller that has its turn may still be trying to take the key.
                    self.turns.end_any();
                    self.give_up_unentered(env.now);
                    self.admit(grant, adoption.waiter, deadline, false, env);
                    return;
                }
                // The answer came too late.
                Refusal::NoAnswer
            }
            Ok(Outcome::Lost) => {
                adoption.sent = false;
                // An operator may have revoked it: then the row still names it, and a release frees the row.
                let over_at = adoption.deadline().unwrap_or(env.now);
                self.abandoned
                    .push(Abandoned::all_answered(adoption.ticket, over_at, env.now));
                Refusal::TicketOver
            }
            Err(error) if !error.is_retryable() && !error.is_outcome_unknown() => Refusal::Store(error),
            other => {
                adoption.last = Some(other.map_or_else(LastAnswer::Failed, |_| LastAnswer::RowLocked));
                adoption.retry_at = env.now + env.jittered(adoption.pause);
                adoption.pause = (adoption.pause * 2).min(LONGEST_PAUSE);
                self.adopting.push(adoption);
                return;
            }
        };
        self.refuse_adoption(adoption, refusal, env.now);
    }
}
