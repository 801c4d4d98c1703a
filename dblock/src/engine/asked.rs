//! An acquire that is in the wait queue of its key, and waits for its answer.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::Call;
use dblock_core::machine::env::Time;
use dblock_core::machine::ownership::Ownership;
use tokio::sync::oneshot;

use super::cells::{Acquired, Cell, Given};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use crate::LockError;
use crate::meter::{AcquireOutcome, Site};

/// An acquire that waits for its answer. Dropping it gives it up.
pub(super) struct Asked<'a> {
    pub(super) engine: &'a EngineHandle,
    pub(super) of_key: Arc<Cell>,
    answered: bool,
    /// Its number in the wait queue. `None` if it was answered at once.
    number: Option<u64>,
    answer: oneshot::Receiver<Acquired>,
    pub(super) call: Arc<Call>,
    site: Site,
    pub(super) since: Time,
}

impl<'a> Asked<'a> {
    pub(super) fn new(
        engine: &'a EngineHandle,
        of_key: Arc<Cell>,
        number: Option<u64>,
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

    /// The lock, or a turn to take it.
    pub(super) async fn given(&mut self) -> Result<Given, LockError> {
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

    pub(super) fn held(&self, ownership: Arc<Ownership>) -> Hold {
        let lease = Lease::new(
            Arc::clone(&self.engine.shared),
            Arc::clone(&self.of_key),
            ownership,
        );
        Hold::granted(lease, self.engine.clone())
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
        if let Some(number) = self.number {
            shared.step(&self.of_key, |machine, env| machine.give_up(env, number));
        }
    }
}
