//! The driver: all I/O, timers and threads of an engine. It decides nothing about a lock.

mod listener;
pub(crate) mod purge;
mod stop;

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock_core::machine::dispatch::{MAX_BATCH, time_limit};
use dblock_core::machine::key::Transmit;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::listener::Listener;
use self::stop::Stop;
use super::cells::{Cell, Machine, Resumption};
use super::handle::{Command, Permits};

use super::shared::Shared;
use crate::store::{Outcome, Request, Store, StoreError, StoreErrorKind, WakeUp};

/// How long a stopping engine waits for its releases, and then for the store to close.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// So many answers are taken in before anything else that is there.
const MOST_IN_A_ROW: u32 = 16;

pub(super) struct Driver {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedReceiver<Command>,
    /// Every handle is gone, and the machines know it.
    inbox_ended: bool,
    listener: Listener,
    /// At most one for each lane.
    batches: FuturesUnordered<BoxFuture<'static, Answered>>,
    /// The callers that the last batch answered.
    resumption: Option<Arc<Resumption>>,
    tasks: JoinSet<()>,
    permits: Arc<Permits>,
    stop: Stop,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, inbox: mpsc::UnboundedReceiver<Command>) -> Self {
        Self {
            listener: Listener::new(&shared.store),
            permits: Arc::new(Permits::new(shared.store.capabilities().concurrency)),
            shared,
            inbox,
            inbox_ended: false,
            batches: FuturesUnordered::new(),
            resumption: None,
            tasks: JoinSet::new(),
            stop: Stop::No,
        }
    }

    /// Runs until the last handle is gone and everything is released, or until it is shut down.
    pub(super) async fn run(mut self, purge_after: Option<Duration>) {
        let mut background = purge::start(
            Arc::clone(&self.shared.store),
            Arc::clone(&self.permits),
            purge_after,
        );
        let mut in_a_row = 0;
        loop {
            self.shared.look_at_due();
            self.send_batches();
            if !matches!(self.stop, Stop::No) {
                drop(background.take());
                if self.may_stop() {
                    break;
                }
            }
            self.listen();
            let wake_at = self.wakes_at();
            tokio::select! {
                // In a fixed order, so that a simulation can repeat a run. Answers come first: leases depend on them. After
                // some in a row the others have their turn.
                biased;
                Some(answered) = self.batches.next(), if in_a_row < MOST_IN_A_ROW => {
                    in_a_row += 1;
                    self.answer(answered);
                    continue;
                }
                Some(_) = self.tasks.join_next() => {}
                command = self.inbox.recv(), if !self.inbox_ended => self.handle(command),
                wake_up = self.listener.next() => self.handle_wake_up(wake_up),
                () = self.shared.wake.notified() => {}
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
                () = ready(()), if in_a_row == MOST_IN_A_ROW => {}
            }
            in_a_row = 0;
        }
        self.finish().await;
    }

    /// When the driver must act without an event.
    fn wakes_at(&self) -> Option<Instant> {
        let next_look = self.shared.schedule().next_look();
        let now = self.shared.clock.now();
        let look = next_look.map(|at| Instant::now() + at.since(now));
        look.into_iter().chain(self.stop.wakes_at()).min()
    }

    /// Sends a batch on every free lane that has requests.
    fn send_batches(&mut self) {
        loop {
            let (lane, cells, kinds) = {
                let now = self.shared.clock.now();
                let resuming = self
                    .resumption
                    .as_ref()
                    .is_some_and(|callers| callers.must_wait());
                let mut schedule = self.shared.schedule();
                let Some(lane) = schedule.dispatch.next_lane(now, resuming) else {
                    return;
                };
                let (cells, kinds) = schedule.dispatch.take(lane, now);
                (lane, cells, kinds)
            };
            let mut batch = Batch::new(lane);
            for cell in cells {
                // The key may need something else by now.
                if let Some(transmit) = self.shared.transmit(&cell, kinds) {
                    batch.push(cell, transmit);
                }
            }
            if batch.is_empty() {
                self.shared.schedule().dispatch.answered(lane);
            } else {
                self.batches
                    .push(Box::pin(batch.run(Arc::clone(&self.shared.store))));
            }
        }
    }

    /// Gives the answers of a batch to the machines.
    fn answer(&mut self, answered: Answered) {
        self.shared.schedule().dispatch.answered(answered.lane);
        self.shared.health.note(&answered.answers);
        self.shared.meter.answers(&answered.answers);
        self.shared.meter.store_events();
        self.shared.meter.batch(answered.cells.len(), answered.took);
        let resumption = Resumption::new(&self.shared.wake);
        for (cell, answer) in answered.cells.iter().zip(answered.answers) {
            self.shared
                .answer(cell, answer, answered.most_together, &resumption);
        }
        self.resumption = Some(resumption);
    }

    fn handle(&mut self, command: Option<Command>) {
        match command {
            Some(Command::Run(task)) => {
                let task = task(Arc::clone(&self.shared.store), Arc::clone(&self.permits));
                self.tasks.spawn(task);
            }
            Some(Command::Shutdown { grace, done }) => {
                self.stop.begin(grace, Some(done));
                self.shared.each(Machine::refuse_outermost);
            }
            None => {
                // Every manager, guard and body is gone. Their locks are being released.
                self.inbox_ended = true;
                self.stop.begin(SHUTDOWN_TIMEOUT, None);
            }
        }
    }

    /// Listens while callers wait for keys of other processes.
    fn listen(&mut self) {
        if self.shared.wants_wake_ups.swap(false, Ordering::Relaxed) {
            self.listener.need(Instant::now());
        }
    }

    /// `None`: no more wake-ups arrive.
    fn handle_wake_up(&mut self, wake_up: Option<WakeUp>) {
        let shared = &self.shared;
        match wake_up {
            Some(WakeUp::Released(key)) => {
                if let Some(cell) = shared.cells.find(&key) {
                    shared.step(&cell, Machine::handle_freed);
                }
            }
            Some(WakeUp::MayEnter {
                key, inside, next, ..
            }) => {
                if let Some(cell) = shared.cells.find(&key) {
                    shared.step(&cell, |machine, env| machine.handle_may_enter(env, inside, next));
                }
            }
            Some(WakeUp::PassedOn {
                key,
                lease_id,
                fence_token,
                ..
            }) => {
                if let Some(cell) = shared.cells.find(&key) {
                    shared.step(&cell, |machine, env| {
                        machine.handle_passed_on(env, lease_id, fence_token);
                    });
                }
            }
            // Earlier answers may be out of date.
            Some(WakeUp::Listening) => {
                shared.listening.store(true, Ordering::Relaxed);
                shared.each(Machine::handle_freed);
            }
            // One of a later version: waiters poll.
            Some(_) => {}
            None => {
                shared.listening.store(false, Ordering::Relaxed);
                shared.each(Machine::handle_wake_ups_lost);
            }
        }
    }

    async fn finish(mut self) {
        self.batches.clear();
        self.tasks.shutdown().await;
        if timeout(SHUTDOWN_TIMEOUT, self.shared.store.close())
            .await
            .is_err()
        {
            tracing::warn!("the lock store did not close in time");
        }
        self.stop.finish();
    }
}

impl Drop for Driver {
    /// However the engine ends, no body goes on without renewals, and no caller waits on.
    fn drop(&mut self) {
        self.shared.stop_granting();
        self.shared.stopped.store(true, Ordering::Release);
        self.shared.driver_gone.store(true, Ordering::Release);
        self.shared.cells.each(|cell| self.shared.abort(cell));
    }
}

// ── Batches ──────────────────────────────────────────────────────────────────────────────────────────

/// Requests that go together.
struct Batch {
    lane: usize,
    cells: Vec<Arc<Cell>>,
    requests: Vec<Request>,
    limit: Duration,
}

/// A batch and its answers.
struct Answered {
    lane: usize,
    cells: Vec<Arc<Cell>>,
    answers: Vec<Result<Outcome, StoreError>>,
    /// How long the store took.
    took: Duration,
    /// The largest batch for these keys next time.
    most_together: usize,
}

impl Batch {
    fn new(lane: usize) -> Self {
        Self {
            lane,
            cells: Vec::new(),
            requests: Vec::new(),
            limit: time_limit(None),
        }
    }

    fn push(&mut self, cell: Arc<Cell>, transmit: Transmit) {
        self.limit = self.limit.min(time_limit(transmit.time_limit));
        self.cells.push(cell);
        self.requests.push(transmit.request);
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Runs the batch on `store`.
    async fn run(self, store: Arc<dyn Store>) -> Answered {
        let count = self.requests.len();
        let sent_at = Instant::now();
        let (answers, most_together) = match answers_of(&*store, &self.requests, self.limit).await {
            Ok(answers) => (answers, MAX_BATCH),
            Err(error) => (vec![Err(error); count], (count / 8).max(1)),
        };
        Answered {
            lane: self.lane,
            cells: self.cells,
            answers,
            took: sent_at.elapsed(),
            most_together,
        }
    }
}

/// # Errors
/// The store did not give one answer to each request.
async fn answers_of(
    store: &dyn Store,
    requests: &[Request],
    limit: Duration,
) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
    // The call is inside the future too: a store may panic before it returns its future.
    let work = async { timeout(limit, store.apply(requests)).await };
    let message = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(Ok(answers)) if answers.len() == requests.len() => return Ok(answers),
        Ok(Ok(answers)) => {
            format!(
                "the store gave {} answers to {} requests",
                answers.len(),
                requests.len()
            )
        }
        Ok(Err(_)) => format!("the database has not answered within {limit:?}"),
        Err(_) => "the store panicked".into(),
    };
    Err(StoreError::new(StoreErrorKind::Interrupted, message))
}
