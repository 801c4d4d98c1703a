//! How a lock is acquired: the caller steps the machine itself, and waits for its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::env::{Env, Time};
use dblock_core::machine::out::Turn;
use dblock_core::machine::ownership::Ownership;
use tokio::sync::oneshot;
#[cfg(feature = "sql")]
use uuid::Uuid;

use super::cells::{Acquired, Cell, Given, Machine, ToAcquire};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use super::shared::Unscheduled;
use super::turn::TurnToTake;
use crate::Key;
use crate::LockError;
use crate::meter::{AcquireOutcome, Site};

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
        async move { waits_for(&mut asked)?.hold().await }
    }

    /// As [`acquire`](Self::acquire), for a caller whose transaction can take the key itself: where nobody holds it,
    /// the caller gets its turn to try.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "only transactions take keys")
    )]
    pub(crate) fn acquire_or_turn(
        &self,
        key: &Key,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Entered, LockError>> {
        let mut asked = self.ask_alone(key, call, Machine::acquire);
        async move { waits_for(&mut asked)?.entered().await }
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
            // It does not wait.
            0
        });
        async move { waits_for(&mut asked)?.hold().await }
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

    fn ask_alone(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> u64,
    ) -> Result<Asked<'_>, LockError> {
        let (asked, unscheduled) = self.ask(key, call, asks)?;
        self.shared.put(unscheduled);
        Ok(asked)
    }

    /// Puts a caller into the wait queue of its key. The key still has to be put into the schedule.
    fn ask(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> u64,
    ) -> Result<(Asked<'_>, Option<Unscheduled>), LockError> {
        let shared = &self.shared;
        let site = shared.meter.site(call.options.function);
        if let Some(refused) = self.refuses(&call, &site, key) {
            return Err(refused);
        }
        let since = self.now();
        let (to, answer) = oneshot::channel();
        let asking = Arc::clone(&call);
        let (of_key, number, unscheduled) =
            shared.step_new(key, |machine, env| asks(machine, env, asking, to));
        // A machine that panicked has answered.
        let asked = Asked::new(self, of_key, number.unwrap_or_default(), answer, call, since);
        if shared.stopped.load(Ordering::Acquire) {
            // The engine may have ended just before this acquire.
            return Err(shutdown(&site, key));
        }
        Ok((asked, unscheduled))
    }

    /// Why a caller may not ask for a lock at all.
    pub(super) fn refuses(&self, call: &Call, site: &Site, key: &Key) -> Option<LockError> {
        let shared = &self.shared;
        let stops =
            shared.stopping.load(Ordering::Acquire) && !call.nested || shared.stopped.load(Ordering::Acquire);
        stops.then(|| shutdown(site, key))
    }
}

/// Borrowed, because a future that moved it would have it twice.
fn waits_for<'a, 'e>(asked: &'a mut Result<Asked<'e>, LockError>) -> Result<&'a mut Asked<'e>, LockError> {
    asked
        .as_mut()
        .map_err(|refused| std::mem::replace(refused, LockError::shutdown(None)))
}

fn shutdown(site: &Site, key: &Key) -> LockError {
    site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
    LockError::shutdown(Some(key.to_typed()))
}

/// What an acquire came to.
pub(crate) enum Entered {
    Hold(Hold),
    /// Only for a caller that [takes](Call::takes).
    Turn(TurnToTake),
    /// As `Turn`: it is not its turn yet, and is when it comes [back](TurnToTake::again) with its connection.
    Soon(TurnToTake),
}

/// An acquire that waits for its answer. Dropping it gives it up.
pub(super) struct Asked<'a> {
    engine: &'a EngineHandle,
    of_key: Arc<Cell>,
    answered: bool,
    number: u64,
    answer: oneshot::Receiver<Acquired>,
    call: Arc<Call>,
    site: Site,
    since: Time,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        engine: &'a EngineHandle,
        of_key: Arc<Cell>,
        number: u64,
        answer: oneshot::Receiver<Acquired>,
        call: Arc<Call>,
        since: Time,
    ) -> Self {
        let site = engine.site(call.options.function);
        Self {
            engine,
            of_key,
            answered: false,
            number,
            answer,
            call,
            site,
            since,
        }
    }

    /// The lock, with a lease.
    pub(super) async fn hold(&mut self) -> Result<Hold, LockError> {
        match self.given().await? {
            Given::Lock(ownership) => Ok(self.held(ownership)),
            Given::Turn(turn) | Given::Soon(turn) => {
                Box::pin(self.to_take(turn).for_lease(Duration::ZERO)).await
            }
        }
    }

    /// What the acquire came to.
    pub(super) async fn entered(&mut self) -> Result<Entered, LockError> {
        Ok(match self.given().await? {
            Given::Lock(ownership) => Entered::Hold(self.held(ownership)),
            Given::Turn(turn) => Entered::Turn(self.to_take(turn)),
            Given::Soon(turn) => Entered::Soon(self.to_take(turn)),
        })
    }

    async fn given(&mut self) -> Result<Given, LockError> {
        let mut waiting = None;
        let answer = poll_fn(|context| {
            let polled = Pin::new(&mut self.answer).poll(context);
            if polled.is_pending() {
                waiting.get_or_insert_with(|| self.site.waits());
            }
            polled
        });
        let answer = answer.await;
        self.answered = true;
        if let Ok((given, _)) = answer {
            return given;
        }
        self.site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
        Err(LockError::shutdown(Some(self.of_key.key().to_typed())))
    }

    fn held(&self, ownership: Arc<Ownership>) -> Hold {
        let lease = Lease::new(
            Arc::clone(&self.engine.shared),
            Arc::clone(&self.of_key),
            ownership,
        );
        Hold::granted(lease, self.engine.clone())
    }

    fn to_take(&self, turn: Turn) -> TurnToTake {
        let (of_key, call) = (Arc::clone(&self.of_key), Arc::clone(&self.call));
        let site = self.engine.site(call.options.function);
        TurnToTake::new(self.engine.clone(), of_key, turn, call, self.since, site)
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let shared = &self.engine.shared;
        // From here on a grant goes back to who sends it.
        self.answer.close();
        if let Ok((Ok(given), _)) = self.answer.try_recv() {
            shared.give_back(&self.of_key, given);
        }
        let waited = self.engine.now().since(self.since);
        self.site.acquire_ended(AcquireOutcome::Dropped, waited);
        let number = self.number;
        shared.step(&self.of_key, |machine, env| machine.give_up(env, number));
    }
}
