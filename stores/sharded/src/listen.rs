//! Wake-ups of all shards as one stream.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use tokio::time::sleep;

use super::{Place, Shard, ShardedStore};
use dblock_core::store::{StoreError, StoreErrorKind, WakeUp};

/// Pause before a shard is listened to again: starts at the first, grows to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A shard that hangs is waited for no longer.
const LONGEST_START: Duration = Duration::from_secs(3);

/// Ends when no shard is heard, or when one does not support listening.
///
/// It says that it listens when each shard is heard or has failed, and again whenever one is heard later. All
/// keys are asked for then, so nothing stays missed that a shard has told meanwhile.
pub(super) async fn listen(store: &ShardedStore, tell: &(dyn Fn(WakeUp) + Send + Sync)) -> StoreError {
    let heard = Heard {
        store,
        tell,
        open: AtomicUsize::new(store.shards.len()),
        failed: AtomicUsize::new(0),
        said: AtomicBool::new(false),
    };
    let shards = store.shards.iter().map(|shard| heard.shard(shard));
    let listening: Vec<BoxFuture<'_, StoreError>> = shards
        .map(|shard| Box::pin(shard) as _)
        .chain([Box::pin(heard.start()) as _])
        .collect();
    select_all(listening).await.0
}

/// The state that the listeners of all shards share.
struct Heard<'l> {
    store: &'l ShardedStore,
    tell: &'l (dyn Fn(WakeUp) + Send + Sync),
    /// How many shards have neither been heard nor failed yet.
    open: AtomicUsize,
    /// How many are not heard since they failed.
    failed: AtomicUsize,
    /// It was said that all are listened to.
    said: AtomicBool,
}

impl Heard<'_> {
    async fn start(&self) -> StoreError {
        sleep(LONGEST_START).await;
        if !self.said.load(Ordering::Relaxed) {
            self.say();
        }
        pending().await
    }

    fn say(&self) {
        self.said.store(true, Ordering::Relaxed);
        (self.tell)(WakeUp::Listening);
    }

    /// Listens to one shard again and again, until all of them have failed.
    async fn shard(&self, shard: &Shard) -> StoreError {
        let mut pause = FIRST_PAUSE;
        let (is_open, is_failed) = (AtomicBool::new(true), AtomicBool::new(false));
        let is_last_open =
            || is_open.swap(false, Ordering::Relaxed) && self.open.fetch_sub(1, Ordering::Relaxed) == 1;
        loop {
            let began = AtomicBool::new(false);
            let tell = |wake_up| {
                if wake_up != WakeUp::Listening {
                    return self.pass(wake_up);
                }
                began.store(true, Ordering::Relaxed);
                if is_failed.swap(false, Ordering::Relaxed) {
                    self.failed.fetch_sub(1, Ordering::Relaxed);
                }
                if is_last_open() || self.said.load(Ordering::Relaxed) {
                    self.say();
                }
            };
            let error = shard.named(shard.store.listen(&tell).await);
            let all_failed = !is_failed.swap(true, Ordering::Relaxed)
                && self.failed.fetch_add(1, Ordering::Relaxed) + 1 == self.store.shards.len();
            if all_failed || error.kind() == StoreErrorKind::Unsupported {
                return error;
            }
            if is_last_open() {
                self.say();
            }
            if began.load(Ordering::Relaxed) {
                pause = FIRST_PAUSE;
            }
            tracing::debug!(%error, "the releases of a shard are not heard; this is tried again");
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn pass(&self, wake_up: WakeUp) {
        if !self.said.load(Ordering::Relaxed) {
            return;
        }
        (self.tell)(match wake_up {
            // One row of two, which is not enough to enter: the process that waits has to ask.
            WakeUp::PassedOn { key, .. } if matches!(self.store.places.of(&key), Place::Moved { .. }) => {
                WakeUp::Released(key)
            }
            wake_up => wake_up,
        });
    }
}
