//! How a lock is acquired: the caller steps the machine itself, and waits for its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::env::{Env, Time};
use tokio::sync::oneshot;
#[cfg(feature = "sql")]
use uuid::Uuid;

use super::cells::{Acquired, Cell, Machine, ToAcquire};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use super::shared::Unscheduled;
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
        self.ask_alone(key, call, Machine::acquire)
    }

    /// Another call in the transaction that keeps this lease. Fails when the lease is over meanwhile.
    #[cfg(feature = "sql")]
    pub(crate) fn enter_again(
        &self,
        key: &Key,
        lease_id: Uuid,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        self.ask_alone(key, call, move |machine, env, call, to| {
            machine.enter_in_transaction(env, lease_id, call, to);
            // It does not wait.
            0
        })
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
                Ok(asked) => asked.answer().await,
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
    ) -> impl Future<Output = Result<Hold, LockError>> {
        let asked = self.ask(key, call, asks).map(|(asked, unscheduled)| {
            self.shared.put(unscheduled);
            asked
        });
        async { asked?.answer().await }
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
        let refused = |site: &Site| {
            site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
            LockError::shutdown(Some(key.to_typed()))
        };
        if shared.stopping.load(Ordering::Acquire) && !call.nested || shared.stopped.load(Ordering::Acquire) {
            return Err(refused(&site));
        }
        let since = self.now();
        let (to, answer) = oneshot::channel();
        let (of_key, number, unscheduled) = shared.step_new(key, |machine, env| asks(machine, env, call, to));
        let asked = Asked {
            engine: self,
            cell: Some(of_key),
            // A machine that panicked has answered.
            number: number.unwrap_or_default(),
            answer,
            site,
            since,
        };
        if shared.stopped.load(Ordering::Acquire) {
            // The engine may have ended just before this acquire.
            return Err(refused(&asked.site));
        }
        Ok((asked, unscheduled))
    }
}

/// An acquire that waits for its answer. Dropping it gives it up.
struct Asked<'a> {
    engine: &'a EngineHandle,
    /// Until the answer has come.
    cell: Option<Arc<Cell>>,
    number: u64,
    answer: oneshot::Receiver<Acquired>,
    site: Site,
    since: Time,
}

impl Asked<'_> {
    async fn answer(mut self) -> Result<Hold, LockError> {
        let mut waiting = None;
        let answer = poll_fn(|context| {
            let polled = Pin::new(&mut self.answer).poll(context);
            if polled.is_pending() {
                waiting.get_or_insert_with(|| self.site.waits());
            }
            polled
        });
        let answer = answer.await;
        let cell = self.cell.take().expect("there is one answer");
        match answer {
            Ok((Ok(ownership), _)) => {
                let lease = Lease::new(Arc::clone(&self.engine.shared), cell, ownership);
                Ok(Hold::granted(lease, self.engine.clone()))
            }
            Ok((Err(refused), _)) => Err(refused),
            Err(_) => {
                self.site.acquire_ended(AcquireOutcome::Shutdown, Duration::ZERO);
                Err(LockError::shutdown(Some(cell.key().to_typed())))
            }
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        let Some(cell) = self.cell.take() else { return };
        let shared = &self.engine.shared;
        // From here on a grant goes back to who sends it.
        self.answer.close();
        if let Ok((Ok(ownership), _)) = self.answer.try_recv() {
            shared.drop_hold(&cell, &ownership);
        }
        let waited = self.engine.now().since(self.since);
        self.site.acquire_ended(AcquireOutcome::Dropped, waited);
        let number = self.number;
        shared.step(&cell, |machine, env| machine.give_up(env, number));
    }
}
