//! Lanes to the store: which keys have something to send, and which lane may send its next batch now.
//!
//! Group commit: while a batch is on its way, the next one gathers. A store that takes three calls at once gets
//! a lane for each kind of request, so that a renewal never waits behind acquires; one that takes fewer gets
//! mixed batches.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::batch::{self, Kind};
use super::gather;
use crate::key::Key;

/// More requests than this at a time are a crowd.
const CROWD: usize = 64;

#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Vec<Lane>,
    /// A batch waits for another one until then.
    held_back_until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    /// Keys with something to send. What they need may have changed since.
    ready: VecDeque<Key>,
    /// How many requests are on their way, and since when.
    on_its_way: Option<(usize, Instant)>,
    /// Since when the next batch waits for another one. That is done once a batch.
    held_back_since: Option<Instant>,
}

impl Lanes {
    pub(super) fn new(count: usize) -> Self {
        Self {
            lanes: (0..count).map(|_| Lane::default()).collect(),
            held_back_until: None,
        }
    }

    pub(super) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// The lane for requests of this kind.
    pub(super) fn of(&self, kind: Kind) -> usize {
        kind.lane(self.lanes.len())
    }

    pub(super) fn push(&mut self, lane: usize, key: Key) {
        self.lanes[lane].ready.push_back(key);
    }

    pub(super) fn pop(&mut self, lane: usize) -> Option<Key> {
        self.lanes[lane].ready.pop_front()
    }

    pub(super) fn put_back(&mut self, lane: usize, key: Key) {
        self.lanes[lane].ready.push_front(key);
    }

    /// When to look again for a batch that waits for another one.
    pub(super) fn held_back_until(&self) -> Option<Instant> {
        self.held_back_until
    }

    /// All lanes are looked at anew.
    pub(super) fn look(&mut self) {
        self.held_back_until = None;
    }

    /// Whether a batch can be sent now. If it is to wait for another one, that is noted.
    pub(super) fn may_send(&mut self, lane: usize, now: Instant) -> bool {
        if self.lanes[lane].on_its_way.is_some() || self.lanes[lane].ready.is_empty() {
            return false;
        }
        match self.waits_until(lane) {
            Some(until) if until > now => {
                self.held_back_until = Some(until);
                false
            }
            _ => true,
        }
    }

    /// So many requests are on their way, or ready to go, that batches are large by themselves. Then client and
    /// server are best kept busy at the same time.
    pub(super) fn are_crowded(&self) -> bool {
        let load = |lane: &Lane| lane.ready.len() + lane.on_its_way.map_or(0, |(count, _)| count);
        self.lanes.iter().map(load).sum::<usize>() > CROWD
    }

    /// Until when a lane waits for the batch of its counterpart.
    fn waits_until(&mut self, lane: usize) -> Option<Instant> {
        let counterpart = batch::counterpart(lane, self.lanes.len())?;
        let (count, sent_at) = self.lanes[counterpart].on_its_way?;
        let lane = &mut self.lanes[lane];
        let since = *lane.held_back_since.get_or_insert(sent_at);
        gather::waits_for(lane.ready.len(), count, since)
    }

    pub(super) fn sent(&mut self, lane: usize, requests: usize, now: Instant) {
        self.lanes[lane].on_its_way = Some((requests, now));
        self.lanes[lane].held_back_since = None;
    }

    pub(super) fn answered(&mut self, lane: usize) {
        self.lanes[lane].on_its_way = None;
    }
}
