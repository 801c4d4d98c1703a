//! What a caller that waits is told, and its look for a deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::oneshot::error::RecvError;
use uuid::Uuid;

use super::acquire::Asked;
use super::cells::Acquired;
use super::handle::EngineHandle;
use super::shared::Shared;
use crate::Key;
use crate::chain::Link;

/// How often a caller looks around while it waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Wakes those that look around, while there are any: a task of the engine's for all of them.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    watchers: AtomicUsize,
    runs: AtomicBool,
    tick: Notify,
}

/// Somebody looks around, for as long as this lives.
struct Watching(Arc<Shared>);

impl Watching {
    fn new(engine: &EngineHandle) -> Self {
        let shared = Arc::clone(&engine.shared);
        shared.ticker.watchers.fetch_add(1, Ordering::SeqCst);
        if !shared.ticker.runs.swap(true, Ordering::SeqCst) {
            let ticks = Arc::clone(&shared);
            engine.spawn(move |_, _| async move { ticks.ticker.run().await });
        }
        Self(shared)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.ticker.watchers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticker {
    async fn run(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            self.tick.notify_waiters();
            if self.watchers.load(Ordering::SeqCst) > 0 {
                continue;
            }
            self.runs.store(false, Ordering::SeqCst);
            // One that came before this store has not started another task.
            if self.watchers.load(Ordering::SeqCst) == 0 || self.runs.swap(true, Ordering::SeqCst) {
                return;
            }
        }
    }
}

impl Asked<'_> {
    /// Whether somebody wants to be told of the wait, or the caller holds a lock that another one may wait for.
    pub(super) fn is_watched(&self) -> bool {
        let wants = self.call.nested || self.call.tells_wait.is_some();
        wants && self.number.is_some() && !self.call.is_non_blocking()
    }

    /// The answer. A timeout names the deadlock that was seen last, if the holder is still the same.
    pub(super) async fn watched_answer(&mut self) -> Result<Acquired, RecvError> {
        let watching = Watching::new(self.engine);
        let number = self.number.unwrap_or_default();
        let since = self.engine.now();
        let (mut waiting, mut deadlock) = (None, None);
        let mut next_look = LOOK_EVERY;
        loop {
            let tick = watching.0.ticker.tick.notified();
            tokio::select! {
                biased;
                answer = self.answer(&mut waiting) => return named(answer, deadlock),
                () = tick => {}
            }
            let now = self.engine.now();
            let waited = now.since(since);
            if waited < LOOK_EVERY {
                continue;
            }
            let holder = self.of_key.holder_for(number, now);
            let owner = holder.as_ref().map(|holder| holder.owner);
            if let Some(tells) = &self.call.tells_wait {
                let ahead = self.of_key.ahead_of(number);
                tells.tell(self.of_key.key().to_typed(), holder, waited, ahead);
            }
            let Some((owner, chain)) = owner.zip(Link::current()) else {
                continue;
            };
            if waited < next_look {
                continue;
            }
            next_look = waited * 2;
            let tick = watching.0.ticker.tick.notified();
            let found = tokio::select! {
                biased;
                answer = self.answer(&mut waiting) => return named(answer, deadlock),
                found = wanted_by(owner, &chain) => found,
                // It would come too late.
                () = tick => continue,
            };
            if let (Some(held), None) = (&found, &deadlock) {
                tracing::warn!(key = %self.of_key.key().typed(), owner = %self.call.owner, holder = %owner,
                    held = %held, "two call chains may wait for each other");
            }
            deadlock = found.map(|held| (owner, held));
        }
    }
}

fn named(answer: Result<Acquired, RecvError>, deadlock: Option<(Uuid, Key)>) -> Result<Acquired, RecvError> {
    let (given, resuming) = answer?;
    Ok((given.map_err(|error| error.with_deadlock(deadlock)), resuming))
}

/// A key that the chain still holds, and that this owner waits for.
async fn wanted_by(owner: Uuid, chain: &Link) -> Option<Key> {
    for lease in chain.iter() {
        if lease.lost_reason().is_some() {
            continue;
        }
        let key = lease.key();
        if lease.is_waited_for_by(owner) {
            return Some(key.to_typed());
        }
        let row = match lease.engine().look_at_row(key).await {
            Ok(row) => row,
            Err(error) => {
                tracing::debug!(key = %key.typed(), %error, "could not look for a deadlock");
                continue;
            }
        };
        let ours = row.as_ref().filter(|row| row.owner == lease.owner());
        let next = ours.and_then(|row| row.live_successor());
        if next.is_some_and(|next| next.owner == owner) {
            return Some(key.to_typed());
        }
    }
    None
}
