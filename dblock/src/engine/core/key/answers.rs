//! Applies the store's answers to a key.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::Machine;
use super::abandoned::Abandoned;
use super::asking::Place;
use super::held::{After, Grant, Times};
use super::sending::{Asked, OnItsWay, Sent};
use crate::engine::core::env::Env;
use crate::engine::core::flaw::{Flaw, flawed};
use crate::engine::core::out::{LastAnswer, Note, Refusal};
use crate::engine::core::time::Time;
use crate::store::{Action, Holder, Outcome, StoreError, StoreErrorKind};

/// How long a non-blocking caller waits for a row that somebody has locked.
const ROW_LOCKED_TIMEOUT: Duration = Duration::from_secs(1);

impl<A, C> Machine<A, C> {
    pub(super) fn apply_answer(&mut self, answer: Result<Outcome, StoreError>, env: &mut Env<'_>) {
        // Answers need no number: a key has one request on its way, and the driver gives it exactly one
        // answer. A request that took too long is answered by the time limit, and its future dropped.
        let Some(sent) = self.on_its_way.take() else {
            return;
        };
        if flawed(Flaw::AnswersCountTwice) {
            self.apply_to(&sent, answer.clone(), env);
        }
        self.apply_to(&sent, answer, env);
    }

    fn apply_to(&mut self, sent: &OnItsWay, answer: Result<Outcome, StoreError>, env: &mut Env<'_>) {
        match &sent.what {
            Sent::Abandoned => self.abandoned.retain_mut(|abandoned| {
                abandoned.lease_id != sent.lease_id
                    || !abandoned.release_answered(&answer, sent.sent_at, env.now)
            }),
            Sent::OwnLease(action) => self.apply_to_own_lease(sent, action, answer, env),
            Sent::Arriving { ttl, owner } => {
                self.apply_to_arriving(sent.sent_at, *ttl, *owner, answer, env);
            }
            Sent::Acquire(asked) => self.apply_to_waiter(sent, asked, answer, env),
        }
    }

    fn apply_to_own_lease(
        &mut self,
        sent: &OnItsWay,
        action: &Action,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let Some(held) = self.held.as_mut().filter(|held| held.lease_id() == sent.lease_id) else {
            return;
        };
        if let Ok(Outcome::Extended { wanted, .. }) = &answer {
            self.notes.extend(held.renewal_lag(env.now).map(Note::RenewalLag));
            held.hand_over_until(self.fairness.extended(*wanted, env));
        }
        let after = held.apply_answer(action, sent.sent_at, answer, env.now);
        if let After::Over { passed_on } = after
            && let Some(held) = self.end_lease(env.now)
        {
            if !matches!(action, Action::Release) {
                self.take_back(&held, env.now);
            }
            if passed_on {
                let pause = self.fairness.passed_over(env);
                self.asking.ask_after(pause, env.now);
            }
        }
    }

    /// Applies the answer to the extension of a row that was passed on.
    fn apply_to_arriving(
        &mut self,
        sent_at: Time,
        ttl: Duration,
        owner: Uuid,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let Some(arriving) = self.asking.arriving() else {
            return;
        };
        match answer {
            Ok(Outcome::Extended {
                remaining, wanted, ..
            }) => {
                let grant = Grant {
                    lease_id: arriving.lease_id,
                    fence_token: arriving.fence_token,
                    spare_tokens: arriving.spare_tokens,
                    times: Times {
                        store_end: sent_at + remaining,
                        // An earlier extension of unknown outcome, for another caller, may still be carried out.
                        over_at: arriving.until.max(env.now + remaining),
                        length: ttl,
                        since: sent_at,
                    },
                    row_owner: Some(owner),
                    wanted,
                };
                self.asking.stand = None;
                self.arrive(grant, None, None, env);
            }
            Ok(Outcome::Lost) => {
                self.asking.stand = None;
                self.asking.ask_now();
            }
            Ok(_) => self.asking.retry_arriving(Duration::ZERO, env),
            Err(error) => {
                // The extension may have been carried out, or may still be until a ttl has passed. It then
                // lasts one ttl.
                self.asking.retry_arriving(ttl * 2, env);
                self.refuse_hopeless(&error);
                self.asking.note_answer(LastAnswer::Failed(error), env.now);
            }
        }
    }

    fn apply_to_waiter(
        &mut self,
        sent: &OnItsWay,
        asked: &Asked,
        answer: Result<Outcome, StoreError>,
        env: &mut Env<'_>,
    ) {
        let ask = &asked.acquire;
        self.asking.took(env.now.since(sent.sent_at));
        let (now, lease_id) = (env.now, sent.lease_id);
        match answer {
            Ok(Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
                recorded,
            }) => {
                // A fresh lease is as long as the ask. A remaining time of another length belongs to a row
                // that was passed on.
                let place = self.asking.place().filter(|_| remaining != ask.ttl);
                let grant = Grant {
                    lease_id,
                    fence_token,
                    spare_tokens: ask.spare_tokens,
                    times: Times {
                        store_end: sent.sent_at + remaining,
                        over_at: now + remaining,
                        length: place.map_or(ask.ttl, |place| place.next_ttl),
                        since: sent.sent_at,
                    },
                    // The place may come from an earlier ask for another caller.
                    row_owner: place.is_none().then_some(ask.owner),
                    wanted,
                };
                let undo = asked.undo.clone().filter(|_| recorded);
                self.arrive(grant, Some(asked.number), undo, env);
                self.note_taken_over(taken_over);
            }
            Ok(Outcome::Queued { holder, next_ttl }) => {
                self.asking.queued(Place {
                    lease_id,
                    behind: holder.fence_token,
                    told: asked.told,
                    next_ttl,
                    until: sent.sent_at + next_ttl,
                    spare_tokens: ask.spare_tokens,
                });
                self.busy(holder, env);
            }
            Ok(Outcome::Busy(holder)) => {
                self.busy(holder, env);
                if ask.wanted_for.is_none() && !self.queue.is_empty() {
                    // Nobody waited when this was asked: the row must be told of those that wait now.
                    self.asking.ask_now();
                }
            }
            Ok(Outcome::Skipped) => {
                let came_before = now.before(ROW_LOCKED_TIMEOUT);
                self.refuse_non_blocking(came_before, &Refusal::RowLocked);
                self.asking.skipped(env);
            }
            Ok(Outcome::Lost) if self.asking.place().is_some() => {
                // The row was passed on to the lease, which expired before any wake-up arrived.
                self.asking.leave_stand(Flaw::LostPlaceIsKept);
                self.asking.ask_now();
            }
            Ok(other) => {
                // The lease was never granted, so no store that keeps its contract answers this.
                let message = format!("the store answered an acquire with {other:?}");
                let error = StoreError::new(StoreErrorKind::Interrupted, message);
                self.acquire_failed(lease_id, asked, error, env);
            }
            Err(error) => self.acquire_failed(lease_id, asked, error, env),
        }
    }

    fn note_taken_over(&mut self, former: Option<Holder>) {
        if let Some((held, former)) = self.held.as_ref().zip(former) {
            self.notes
                .push_back(Note::TakenOver(Arc::clone(held.current()), former));
        }
    }

    fn busy(&mut self, holder: Holder, env: &mut Env<'_>) {
        self.refuse_non_blocking(Time::MAX, &Refusal::Busy(Some(holder.clone())));
        self.asking.busy(holder, env);
    }

    fn acquire_failed(&mut self, lease_id: Uuid, asked: &Asked, error: StoreError, env: &mut Env<'_>) {
        let ttl = asked.acquire.ttl;
        if error.is_outcome_unknown() && !flawed(Flaw::UnknownOutcomeIsRepeated) {
            let mut abandoned = match self.asking.place() {
                Some(_) => Abandoned::with_place(lease_id, ttl, env.now),
                None => Abandoned::new(lease_id, ttl, env.now),
            };
            abandoned.undo.clone_from(&asked.undo);
            self.asking.leave_stand(Flaw::UnknownPlaceIsKept);
            if !flawed(Flaw::AbandonedIsForgotten) {
                self.abandoned.push(abandoned);
            }
        }
        self.refuse_hopeless(&error);
        self.asking.failed(error, env);
    }
}
