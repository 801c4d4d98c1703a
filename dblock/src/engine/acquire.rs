//! How a lock is acquired: the caller steps the machine itself, and waits for its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::call::{Call, Takes};
use dblock_core::machine::env::Env;
use dblock_core::machine::out::Turn;
use dblock_core::machine::ownership::Ownership;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;
use uuid::Uuid;

use super::cells::{AcquireReply, Acquired, Cell, Given, Machine};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use super::shared::Unscheduled;
use crate::Key;
use crate::LockError;
use crate::meter::{AcquireOutcome, Site, Waiting};

impl EngineHandle {
    /// Takes a lock. It is asked for at once, so that the future need not keep the call: it only waits for
    /// the answer. Dropping it at any point leaves no lock behind: a grant that arrives later goes to the
    /// next caller of this process, or is released. The row may say for 3 s more that somebody waits.
    pub(crate) fn acquire(
        &self,
        key: &Key,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        let mut asked = self.ask_alone(key, call, Machine::acquire);
        async move { asked_or_refusal(&mut asked)?.hold().await }
    }

    /// A caller that shares the key enters at once, and needs no channel for the answer. `None`: it has to acquire.
    pub(crate) fn join_quietly(&self, key: &Key, call: &Arc<Call>) -> Option<Hold> {
        if !call.shares_with_all() || self.stops(call) {
            return None;
        }
        let of_key = self.shared.cells.find(key)?;
        let ownership = self.shared.join_quietly(&of_key, key, call)?;
        let hold = Hold::granted(Lease::new(self.clone(), of_key, ownership));
        // The engine may have ended just before.
        let stopped = self.shared.stopped.load(Ordering::Acquire);
        (!stopped).then_some(hold)
    }

    /// Adopts the ticket with this lease. Dropping the future at any point leaves no lock behind.
    pub(crate) fn adopt(
        &self,
        key: &Key,
        ticket: Uuid,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        let mut asked = self.ask_alone(key, call, move |machine, env, call, to| {
            machine.adopt(env, ticket, call, to)
        });
        async move { asked_or_refusal(&mut asked)?.hold().await }
    }

    /// Another call in the transaction that keeps this lease. Fails when the lease is over meanwhile.
    #[cfg(feature = "sql")]
    pub(crate) fn enter_again(
        &self,
        key: &Key,
        lease_id: Uuid,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        let mut asked = self.ask_alone(key, call, move |machine, env, call, to| {
            machine.enter_in_transaction(env, lease_id, call, to);
            None::<u64>
        });
        async move { asked_or_refusal(&mut asked)?.hold().await }
    }

    /// Takes several locks. Their requests go together. Returns the holds on the keys before the first one
    /// that is refused, and why that is; the rest is given up. Dropping the future at any point leaves
    /// nothing behind.
    pub(crate) async fn acquire_together(
        &self,
        keys: &[&Key],
        call: &Arc<Call>,
    ) -> (Vec<Hold>, Option<LockError>) {
        let mut all = Vec::with_capacity(keys.len());
        let mut unscheduled = Vec::with_capacity(keys.len());
        for key in keys {
            all.push(
                self.ask(key, Arc::clone(call), Machine::acquire)
                    .map(|(asked, more)| {
                        unscheduled.extend(more);
                        asked
                    }),
            );
        }
        self.shared.put(unscheduled);
        let mut holds = Vec::with_capacity(all.len());
        for asked in all {
            let answer = match asked {
                Ok(mut asked) => asked.hold().await,
                Err(refused) => Err(refused),
            };
            match answer {
                Ok(hold) => holds.push(hold),
                Err(refused) => return (holds, Some(refused)),
            }
        }
        (holds, None)
    }

    /// A caller whose turn is over waits for a lease, in its own place. No caller takes the key before `no_turns_for`
    /// has passed.
    pub(super) async fn come_back(
        &self,
        of_key: &Arc<Cell>,
        turn: Turn,
        call: &Call,
        no_turns_for: Duration,
    ) -> Result<Hold, LockError> {
        let mut call = call.clone();
        call.takes = Takes::No;
        let call = Arc::new(call);
        let (to, answer) = oneshot::channel();
        let asks = Arc::clone(&call);
        if let Some(refused) = self.refuses(&call, of_key.key()) {
            self.shared
                .step(of_key, |machine, env| machine.end_turn(env, turn.number));
            return Err(refused);
        }
        let came = self.shared.step(of_key, |machine, env| {
            machine.come_back(env, turn.number, asks, to, no_turns_for);
        });
        if came.is_none() {
            // Nobody wanted the key any more, so it was forgotten.
            return self.acquire(of_key.key(), call).await;
        }
        let mut asked = Asked::new(self, Arc::clone(of_key), Some(turn.number), answer, call);
        asked.hold().await
    }

    pub(super) fn ask_alone<N: Into<Option<u64>>>(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, AcquireReply) -> N,
    ) -> Result<Asked<'_>, LockError> {
        let (asked, unscheduled) = self.ask(key, call, asks)?;
        self.shared.put(unscheduled);
        Ok(asked)
    }

    /// Puts a caller into the wait queue of its key, or adopts a ticket, or re-enters in a transaction. `asks` returns the number of a caller that waits.
    /// The key still has to be put into the schedule.
    fn ask<N: Into<Option<u64>>>(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, AcquireReply) -> N,
    ) -> Result<(Asked<'_>, Option<Unscheduled>), LockError> {
        let shared = &self.shared;
        if let Some(refused) = self.refuses(&call, key) {
            return Err(refused);
        }
        let (to, answer) = oneshot::channel();
        let asking = Arc::clone(&call);
        let (of_key, number, unscheduled) =
            shared.step_new(key, |machine, env| asks(machine, env, asking, to));
        // A machine that panicked has answered.
        let asked = Asked::new(self, of_key, number.and_then(Into::into), answer, call);
        if shared.stopped.load(Ordering::Acquire) {
            // The engine may have ended just before this acquire.
            return Err(self.shut_down(&asked.call, key));
        }
        Ok((asked, unscheduled))
    }

    /// Why a caller may not ask for a lock at all.
    fn refuses(&self, call: &Call, key: &Key) -> Option<LockError> {
        self.stops(call).then(|| self.shut_down(call, key))
    }

    fn stops(&self, call: &Call) -> bool {
        let shared = &self.shared;
        shared.stopping.load(Ordering::Acquire) && !call.nested || shared.stopped.load(Ordering::Acquire)
    }

    fn shut_down(&self, call: &Call, key: &Key) -> LockError {
        self.site(call.options.function)
            .acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
        LockError::shutdown(Some(key.to_typed()))
    }
}

/// An acquire that waits for its answer. Dropping it gives it up.
pub(super) struct Asked<'a> {
    pub(super) engine: &'a EngineHandle,
    pub(super) of_key: Arc<Cell>,
    answered: bool,
    /// Its number in the wait queue. `None` for a call that enters again in its transaction.
    pub(super) number: Option<u64>,
    answer: oneshot::Receiver<Acquired>,
    pub(super) call: Arc<Call>,
}

impl<'a> Asked<'a> {
    fn new(
        engine: &'a EngineHandle,
        of_key: Arc<Cell>,
        number: Option<u64>,
        answer: oneshot::Receiver<Acquired>,
        call: Arc<Call>,
    ) -> Self {
        Self {
            engine,
            of_key,
            answered: false,
            number,
            answer,
            call,
        }
    }

    /// The lock, or a turn to take it.
    pub(super) async fn given(&mut self) -> Result<Given, LockError> {
        let answer = if self.is_watched() {
            Box::pin(self.watched_answer()).await
        } else {
            self.answer(&mut None).await
        };
        self.answered = true;
        if let Ok((given, _)) = answer {
            return given;
        }
        Err(self.engine.shut_down(&self.call, self.of_key.key()))
    }

    /// It counts as waiting from when it was not answered at once, for as long as `waiting` lives.
    pub(super) fn answer(
        &mut self,
        waiting: &mut Option<Waiting>,
    ) -> impl Future<Output = Result<Acquired, RecvError>> {
        poll_fn(|context| {
            let polled = Pin::new(&mut self.answer).poll(context);
            if polled.is_pending() {
                waiting.get_or_insert_with(|| self.site().waits());
            }
            polled
        })
    }

    fn site(&self) -> &Site {
        self.engine.site(self.call.options.function)
    }

    /// The lock, with a lease.
    async fn hold(&mut self) -> Result<Hold, LockError> {
        match self.given().await? {
            Given::Lock(ownership) => Ok(self.held(ownership)),
            // Only a call that takes gets one.
            Given::Turn(turn) => {
                let comes_back = self
                    .engine
                    .come_back(&self.of_key, turn, &self.call, Duration::ZERO);
                Box::pin(comes_back).await
            }
        }
    }

    pub(super) fn held(&self, ownership: Arc<Ownership>) -> Hold {
        let of_key = Arc::clone(&self.of_key);
        Hold::granted(Lease::new(self.engine.clone(), of_key, ownership))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let shared = &self.engine.shared;
        // From here on the sender of a grant finds nobody, and gives it back.
        self.answer.close();
        if let Ok((Ok(given), _)) = self.answer.try_recv() {
            shared.give_back(&self.of_key, given);
        }
        let waited = self.engine.now().since(self.call.since);
        self.site().acquire_ended(AcquireOutcome::Dropped, waited);
        if let Some(number) = self.number {
            shared.step(&self.of_key, |machine, env| machine.give_up(env, number));
        }
    }
}

/// Borrowed, because a future that moved it would store it twice.
pub(super) fn asked_or_refusal<'a, 'e>(
    asked: &'a mut Result<Asked<'e>, LockError>,
) -> Result<&'a mut Asked<'e>, LockError> {
    asked
        .as_mut()
        .map_err(|refused| std::mem::replace(refused, LockError::shutdown(None)))
}
