//! The contract of a store, over shards.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::place::Place;
use super::rows::Reader;
use super::{Answer, Shard, ShardedStore, listen, rows};
use dblock_core::store::{
    Capabilities, Purged, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp,
};
use dblock_core::{Finding, InspectFilter, Key, LockRow};

pub(super) const NAME: &str = "sharded";

impl Store for ShardedStore {
    /// The weakest of all.
    fn capabilities(&self) -> Capabilities {
        let each = || self.shards.iter().map(|shard| shard.store.capabilities());
        let mut can = Capabilities::new(NAME);
        can.callers_runtime = each().any(|can| can.callers_runtime);
        can.verify_in = (0..self.places.parts()).all(|part| self.transaction_source(part).is_some());
        can.concurrency = each().map(|can| can.concurrency).min().unwrap_or(1);
        can.parts = self.places.parts();
        can.wake_ups = each().all(|can| can.wake_ups);
        can.purge = each().any(|can| can.purge) && !self.places.are_moving();
        can.raises_tokens = each().all(|can| can.raises_tokens);
        can.shortest_ttl = each().map(|can| can.shortest_ttl).max().unwrap_or_default();
        can.clock = each().all(|can| can.clock);
        can.former_leases = each().all(|can| can.former_leases);
        can.queues = each().all(|can| can.queues);
        can.shares = each().all(|can| can.shares) && !self.places.are_moving();
        can
    }

    /// Batches of different shards are sent side by side.
    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Answer>> {
        Box::pin(async move {
            let places: Vec<Place> = requests
                .iter()
                .map(|request| self.places.of(&request.key))
                .collect();
            let Some(first) = places.first() else {
                return Vec::new();
            };
            // The engine sends batches of one part.
            if places.iter().all(|place| place == first) {
                return self.at_place(*first, requests).await;
            }
            let mut distinct = places.clone();
            distinct.sort_unstable();
            distinct.dedup();
            let batches = distinct.into_iter().map(|place| async move {
                let batch: Vec<Request> = requests
                    .iter()
                    .filter(|request| self.places.of(&request.key) == place)
                    .cloned()
                    .collect();
                let answers = self.at_place(place, &batch).await;
                (place, answers.into_iter())
            });
            let mut answered = join_all(batches).await;
            let missing = || StoreError::new(StoreErrorKind::Interrupted, "a shard gave too few answers");
            let answer_of = |place: &Place| {
                let batch = answered.iter_mut().find(|(answered, _)| answered == place);
                batch
                    .and_then(|(_, answers)| answers.next())
                    .unwrap_or_else(|| Err(missing()))
            };
            places.iter().map(answer_of).collect()
        })
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.each(|store| store.check_schema()).await.map(drop) })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.each(|store| store.migrate()).await.map(drop) })
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(rows::inspect(self, filter))
    }

    /// A key that moves is read from all shards.
    fn rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<LockRow>, StoreError>>> {
        Box::pin(join_all(
            keys.iter().map(|key| rows::of(self, key, Reader::Inside)),
        ))
    }

    fn row<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<LockRow>, StoreError>> {
        Box::pin(rows::of(self, key, Reader::Operator))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.operate(key, |store| store.revoke(key)))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(self.operate(key, |store| store.force_release(key)))
    }

    /// Listens to all shards. A shard that cannot be listened to is tried again; until then its keys are
    /// asked for about once a second.
    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(listen::listen(self, tell))
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(rows::purge(self, idle, after, limit))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(async {
            let found = self.each(|store| store.diagnose()).await?;
            let mut findings = Vec::new();
            for (shard, of_shard) in self.shards.iter().zip(found) {
                findings.extend(of_shard.into_iter().map(|mut finding| {
                    finding.found = format!("shard {:?}: {}", shard.name, finding.found);
                    finding
                }));
            }
            Ok(findings)
        })
    }

    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        let own = |shard: &Shard| Shard {
            name: Arc::clone(&shard.name),
            store: shard
                .store
                .for_manager()
                .unwrap_or_else(|| Arc::clone(&shard.store)),
        };
        Some(Arc::new(Self {
            shards: self.shards.iter().map(own).collect(),
            places: self.places.clone(),
        }))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { drop(join_all(self.shards.iter().map(|shard| shard.store.close())).await) })
    }

    fn part_of(&self, key: &Key) -> usize {
        self.places
            .part(self.places.of(key), |at| self.shards[at].store.part_of(key))
    }

    /// Each in the shard that keeps it. While keys move, a transaction cannot take any that do.
    fn make_free_rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut made = false;
            for key in keys {
                if let Place::One(at) = self.places.of(key) {
                    let shard = &self.shards[at];
                    made |= shard.store.make_free_rows(std::slice::from_ref(key)).await?;
                }
            }
            Ok(made)
        })
    }

    fn transaction_source(&self, part: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        let (at, within) = self.places.shard_of_part(part)?;
        self.shards[at].store.transaction_source(within)
    }
}
