//! What a caller that waits is told, and its look for a deadlock.

use std::time::Duration;

use tokio::sync::oneshot::error::RecvError;
use uuid::Uuid;

use super::acquire::Asked;
use super::cells::Acquired;
use crate::Key;
use crate::chain::Link;

/// How often a caller looks around while it waits.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Asked<'_> {
    /// Whether somebody wants to be told of the wait, or the caller holds a lock that another one may wait for.
    pub(super) fn is_watched(&self) -> bool {
        let Some(_) = self.number else { return false };
        self.call.nested && !self.call.is_non_blocking() || self.call.options.on_wait.is_some()
    }

    /// The answer. A timeout names the deadlock that was seen last.
    pub(super) async fn watched_answer(&mut self) -> Result<Acquired, RecvError> {
        let engine = self.engine;
        let mut deadlock = None;
        loop {
            if let Some(answer) = engine.within(Some(LOOK_EVERY), self.answer()).await {
                let (given, resuming) = answer?;
                return Ok((given.map_err(|error| error.with_deadlock(deadlock)), resuming));
            }
            let number = self.number.unwrap_or_default();
            let Some((ahead, holder)) = self.of_key.waits_for(number, engine.now()) else {
                continue;
            };
            let owner = holder.as_ref().map(|holder| holder.owner);
            if let Some(told) = &self.call.options.on_wait {
                let waited = engine.now().since(self.since);
                told.tell(self.of_key.key().to_typed(), holder, waited, ahead);
            }
            let Some((owner, chain)) = owner.zip(Link::current()) else {
                continue;
            };
            tokio::select! {
                biased;
                answer = self.answer() => {
                    let (given, resuming) = answer?;
                    return Ok((given.map_err(|error| error.with_deadlock(deadlock)), resuming));
                }
                found = wanted_by(owner, &chain) => deadlock = found,
            }
        }
    }
}

/// A key of the chain's that this owner waits for.
async fn wanted_by(owner: Uuid, chain: &Link) -> Option<Key> {
    for (lease, engine) in chain.iter() {
        let key = lease.key();
        if lease.is_waited_for_by(owner) {
            return Some(key.to_typed());
        }
        let row = match engine.row(key).await {
            Ok(row) => row,
            Err(error) => {
                tracing::debug!(key = %key.typed(), %error, "could not look for a deadlock");
                continue;
            }
        };
        let next = row.as_ref().and_then(|row| row.live_successor());
        if next.is_some_and(|next| next.owner == owner) {
            return Some(key.to_typed());
        }
    }
    None
}
