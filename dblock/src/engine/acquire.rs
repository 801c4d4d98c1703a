//! How a lock is acquired: the caller steps the machine itself, and waits for its answer.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::env::Env;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::asked::Asked;
use super::cells::{Machine, ToAcquire};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::shared::Unscheduled;
use super::turn::Entered;
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
        async move { waits_for(&mut asked)?.hold().await }
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

    fn ask_alone<N: Into<Option<u64>>>(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> N,
    ) -> Result<Asked<'_>, LockError> {
        let (asked, unscheduled) = self.ask(key, call, asks)?;
        self.shared.put(unscheduled);
        Ok(asked)
    }

    /// Puts a caller into the wait queue of its key, or asks otherwise. `asks` returns the number of a caller that waits.
    /// The key still has to be put into the schedule.
    fn ask<N: Into<Option<u64>>>(
        &self,
        key: &Key,
        call: Arc<Call>,
        asks: impl FnOnce(&mut Machine, &mut Env<'_>, Arc<Call>, ToAcquire) -> N,
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
        let asked = Asked::new(self, of_key, number.and_then(Into::into), answer, call, since);
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
