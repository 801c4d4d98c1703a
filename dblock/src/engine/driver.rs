//! The engine's loop: commands in, batches out, timers.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinSet, yield_now};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::batch::{self, Answered, Batch};
use super::gather::{self, Gather};
use super::key_state::{KeyState, Scene};
use super::lanes::Lanes;
use super::listener::{Heard, Listener};
use super::purge;
use super::stop::Stop;
use super::{Command, Settings, WeakEngine};
use crate::error::LostReason;
use crate::health::HealthBoard;
use crate::key::Key;
use crate::store::{Outcome, Store};

/// The most requests of one batch.
const MAX_BATCH: usize = 1024;

/// The most commands that are obeyed before batches and timers get their turn.
const MOST_COMMANDS: usize = 1024;

/// How long a stopping engine waits for releases to go through.
const FAREWELL: Duration = Duration::from_secs(2);

/// No key is looked at again sooner than this without an event.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

pub(super) async fn drive(
    store: Arc<dyn Store>,
    settings: Settings,
    mut inbox: mpsc::UnboundedReceiver<Command>,
    engine: WeakEngine,
    health: Arc<HealthBoard>,
) {
    let lanes = Lanes::new(batch::lanes(&*store));
    let turn = Arc::new(Semaphore::new(1));
    let store_on_callers_runtime = store.capabilities().callers_runtime;
    let mut driver = Driver {
        purge: purge::start(Arc::clone(&store), Arc::clone(&turn), settings.purge_after),
        listener: Listener::new(&store),
        store,
        settings,
        engine,
        health,
        keys: HashMap::new(),
        touched: Vec::new(),
        looks: BTreeSet::new(),
        lanes,
        gather: (!store_on_callers_runtime).then(Gather::default),
        goes_round: false,
        batches: JoinSet::new(),
        errands: JoinSet::new(),
        turn,
        pending: 0,
        stop: Stop::No,
    };
    let mut commands = Vec::new();
    let mut open = true;
    loop {
        let next_look = driver.looks.first().map(|(at, _)| *at);
        let wake_at = next_look
            .into_iter()
            .chain(driver.stop.wakes_at())
            .chain(driver.lanes.held_back_until())
            .min();
        tokio::select! {
            count = inbox.recv_many(&mut commands, MOST_COMMANDS), if open => {
                if count == 0 {
                    // Every manager, guard and body is gone: what they held is being released.
                    open = false;
                    driver.stop.begin(FAREWELL, None);
                }
            }
            Some(batch) = driver.batches.join_next() => {
                let crowd = driver.lanes.are_crowded();
                if let Ok(batch) = &batch {
                    driver.lanes.answered(batch.lane);
                }
                if crowd {
                    // The store works on the next batch while the answers of this one are looked at. It goes
                    // without what is still in the inbox: in a crowd it is large enough.
                    driver.dispatch();
                    yield_now().await;
                }
                driver.settle(batch, crowd);
            }
            Some(_) = driver.errands.join_next() => {}
            heard = driver.listener.next() => driver.hear(heard),
            () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
        }
        if let Some(gather) = &mut driver.gather {
            gather.gather(&mut inbox, &mut commands);
        }
        // Whatever woke the loop, the next batch takes along what has come meanwhile.
        while commands.len() < MOST_COMMANDS
            && let Ok(command) = inbox.try_recv()
        {
            commands.push(command);
        }
        for command in commands.drain(..) {
            driver.obey(command);
        }
        driver.look_at_due();
        driver.look_at_touched();
        if mem::take(&mut driver.goes_round) && driver.gather.is_some() {
            gather::wait_for(1, &mut inbox, &mut commands);
            for command in commands.drain(..) {
                driver.obey(command);
            }
            driver.look_at_touched();
        }
        if driver.may_stop() {
            break;
        }
        driver.dispatch();
    }
    driver.finish().await;
}

struct Driver {
    store: Arc<dyn Store>,
    settings: Settings,
    engine: WeakEngine,
    health: Arc<HealthBoard>,
    listener: Listener,
    keys: HashMap<Key, Entry>,
    /// Keys to look at before the next batch goes out.
    touched: Vec<Key>,
    /// When to look at which key.
    looks: BTreeSet<(Instant, Key)>,
    lanes: Lanes,
    /// Not on the caller's runtime, whose thread it would keep.
    gather: Option<Gather>,
    /// A key is about to be released that has gone round in this process until now.
    goes_round: bool,
    batches: JoinSet<Answered>,
    errands: JoinSet<()>,
    /// Errands take turns: all connections but one are for locks.
    turn: Arc<Semaphore>,
    /// Goes on until the engine begins to stop.
    purge: Option<AbortOnDropHandle<()>>,
    /// Keys with a release still to be written.
    pending: usize,
    stop: Stop,
}

struct Entry {
    state: KeyState,
    /// Its place in `looks`.
    look_at: Option<Instant>,
    /// It is in `touched`.
    touched: bool,
    /// It counts in `pending`.
    pending: bool,
    /// How large a batch it may go in. After one that hung, batches are smaller and smaller until there is an
    /// answer, so that a request that hangs the store does not take others along again and again.
    most_together: usize,
}

impl Driver {
    fn obey(&mut self, command: Command) {
        let now = Instant::now();
        match command {
            Command::Acquire(waiter) => {
                let refused = match self.stop {
                    Stop::No => false,
                    Stop::Grace { .. } => !waiter.call.nested,
                    Stop::Farewell { .. } => true,
                };
                if refused {
                    return waiter.refuse_shutdown();
                }
                let key = waiter.call.key.clone();
                self.entry(&key, now).state.wait_for_lock(*waiter, now);
                self.touch(&key);
            }
            Command::Abandoned(key, waiter) => {
                if let Some(entry) = self.keys.get_mut(&key) {
                    entry.state.abandoned(waiter);
                    self.touch(&key);
                }
            }
            Command::Holds(lease, syncer) => {
                let key = &lease.terms.key;
                self.entry(key, now).state.note_holds(&lease, syncer, now);
                self.touch(key);
            }
            Command::Run(work) => {
                self.errands
                    .spawn(work(Arc::clone(&self.store), Arc::clone(&self.turn)));
            }
            Command::Shutdown { grace, done } => {
                self.stop.begin(grace, Some(done));
                self.each_key(|state| state.refuse_for_shutdown(false));
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        let now = Instant::now();
        match heard {
            Heard::Released(key) => {
                if let Some(entry) = self.keys.get_mut(&key) {
                    entry.state.woken(now);
                    self.touch(&key);
                }
            }
            Heard::Listening => self.each_key(|state| state.woken(now)),
            Heard::Deaf => self.each_key(|state| state.deafened(now)),
        }
    }

    fn entry(&mut self, key: &Key, now: Instant) -> &mut Entry {
        self.keys.entry(key.clone()).or_insert_with(|| Entry {
            state: KeyState::new(key.clone(), now),
            look_at: None,
            touched: false,
            pending: false,
            most_together: MAX_BATCH,
        })
    }

    fn each_key(&mut self, mut act: impl FnMut(&mut KeyState)) {
        for (key, entry) in &mut self.keys {
            act(&mut entry.state);
            if !mem::replace(&mut entry.touched, true) {
                self.touched.push(key.clone());
            }
        }
    }

    /// Something about the key has changed.
    fn touch(&mut self, key: &Key) {
        if let Some(entry) = self.keys.get_mut(key)
            && !mem::replace(&mut entry.touched, true)
        {
            self.touched.push(key.clone());
        }
    }

    fn look_at_touched(&mut self) {
        let now = Instant::now();
        let mut touched = mem::take(&mut self.touched);
        for key in touched.drain(..) {
            self.look_at(&key, now);
        }
        self.touched = touched;
    }

    /// Something about the key has changed, or its time has come: looks at it, lists it if it has
    /// something to send, and notes when to look again.
    fn look_at(&mut self, key: &Key, now: Instant) {
        let Some(entry) = self.keys.get_mut(key) else {
            return;
        };
        entry.touched = false;
        entry.state.look(Scene {
            engine: &self.engine,
            health: &self.health,
            listening: self.listener.is_listening(),
            now,
        });
        self.goes_round |= entry.state.goes_round(now);
        let lane = entry.state.next_kind(now).map(|kind| self.lanes.of(kind));
        if lane.is_some() && lane != entry.state.listed {
            // What it needs may have changed lanes; the old lane passes over it.
            entry.state.listed = lane;
            if let Some(lane) = lane {
                self.lanes.push(lane, key.clone());
            }
        }
        let pending = entry.state.has_release_pending();
        if pending != mem::replace(&mut entry.pending, pending) {
            self.pending = if pending {
                self.pending + 1
            } else {
                self.pending - 1
            };
            self.health.set_pending_releases(self.pending);
        }
        // A look in the past would be taken at once, again and again.
        let look_at = entry.state.next_look(now).map(|at| at.max(now + SHORTEST_LOOK));
        if look_at != entry.look_at {
            if let Some(at) = mem::replace(&mut entry.look_at, look_at) {
                self.looks.remove(&(at, key.clone()));
            }
            self.looks.extend(look_at.map(|at| (at, key.clone())));
        }
        if entry.state.is_idle(now) && entry.state.listed.is_none() {
            if let Some(at) = entry.look_at {
                self.looks.remove(&(at, key.clone()));
            }
            self.keys.remove(key);
        }
    }

    fn look_at_due(&mut self) {
        let now = Instant::now();
        while self.looks.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, key)) = self.looks.pop_first()
        {
            if let Some(entry) = self.keys.get_mut(&key) {
                entry.look_at = None;
            }
            self.touch(&key);
        }
    }

    /// Sends what is ready on every free lane.
    fn dispatch(&mut self) {
        self.lanes.look();
        for lane in 0..self.lanes.count() {
            loop {
                let now = Instant::now();
                if !self.lanes.may_send(lane, now) {
                    break;
                }
                let batch = self.take_batch(lane);
                if batch.requests.is_empty() {
                    continue;
                }
                self.lanes.sent(lane, batch.requests.len(), now);
                self.batches.spawn(batch.run(Arc::clone(&self.store)));
            }
        }
    }

    fn take_batch(&mut self, lane: usize) -> Batch {
        let now = Instant::now();
        let mut batch = Batch::new(lane);
        let mut most = MAX_BATCH;
        while batch.requests.len() < most
            && let Some(key) = self.lanes.pop(lane)
        {
            let Some(entry) = self.keys.get_mut(&key) else {
                continue;
            };
            if entry.state.listed != Some(lane) {
                continue;
            }
            if entry.most_together <= batch.requests.len() {
                self.lanes.put_back(lane, key);
                break;
            }
            most = most.min(entry.most_together);
            entry.state.listed = None;
            // What the key needs may have changed since it was listed.
            if entry
                .state
                .next_kind(now)
                .is_some_and(|kind| self.lanes.of(kind) == lane)
            {
                let taken = entry.state.take_request(self.settings.hand_over, now);
                batch.extend(taken);
            }
            self.look_at(&key, now);
        }
        batch
    }

    /// Takes the answers of a batch. In a crowd its callers are not waited for.
    fn settle(&mut self, batch: Result<Answered, JoinError>, crowd: bool) {
        let Answered {
            requests, answers, ..
        } = match batch {
            Ok(answered) => answered,
            // `apply` catches what the store does; only an abort ends up here.
            Err(error) => return tracing::error!(%error, "a batch was lost"),
        };
        let now = Instant::now();
        if let Some(gather) = &mut self.gather
            && !crowd
        {
            gather.answered(requests.len());
        }
        let most_together = match &answers {
            Ok(_) => MAX_BATCH,
            Err(_) => (requests.len() / 8).max(1),
        };
        let answers = answers.unwrap_or_else(|error| vec![Err(error); requests.len()]);
        self.health.note(&answers);
        let scene = Scene {
            engine: &self.engine,
            health: &self.health,
            listening: self.listener.is_listening(),
            now,
        };
        let mut somebody_waits = false;
        for (request, answer) in requests.iter().zip(answers) {
            let Some(entry) = self.keys.get_mut(&request.key) else {
                continue;
            };
            let busy = matches!(answer, Ok(Outcome::Busy(_) | Outcome::Queued { .. }));
            entry.most_together = most_together;
            entry.state.settle(answer, scene);
            somebody_waits |= busy && entry.state.waits();
            if !mem::replace(&mut entry.touched, true) {
                self.touched.push(request.key.clone());
            }
        }
        if somebody_waits {
            self.listener.need(now);
        }
    }

    /// Moves the stop on. Returns whether the engine is done.
    fn may_stop(&mut self) -> bool {
        if !matches!(self.stop, Stop::No) {
            self.purge = None;
        }
        let now = Instant::now();
        if let Stop::Grace { end_at, done } = &mut self.stop {
            if now < *end_at && self.keys.values().any(|entry| entry.state.needs_grace(now)) {
                return false;
            }
            let done = mem::take(done);
            self.stop = Stop::Farewell {
                give_up_at: now + FAREWELL,
                done,
            };
            self.each_key(|state| state.end(LostReason::Shutdown, now));
            self.look_at_touched();
        }
        match self.stop {
            Stop::Farewell { give_up_at, .. } => {
                let busy = self.keys.values().any(|entry| entry.state.is_busy()) || !self.errands.is_empty();
                !busy || now >= give_up_at
            }
            _ => false,
        }
    }

    async fn finish(mut self) {
        self.batches.shutdown().await;
        self.errands.shutdown().await;
        if timeout(FAREWELL, self.store.close()).await.is_err() {
            tracing::warn!("the lock store did not close in time");
        }
        if let Stop::Farewell { done, .. } = mem::replace(&mut self.stop, Stop::No) {
            for asker in done {
                let _ = asker.send(());
            }
        }
    }
}

impl Drop for Driver {
    /// However the engine ends, nobody goes on believing in a lease that is no longer renewed.
    fn drop(&mut self) {
        let now = Instant::now();
        for entry in self.keys.values_mut() {
            entry.state.end(LostReason::Shutdown, now);
        }
    }
}
