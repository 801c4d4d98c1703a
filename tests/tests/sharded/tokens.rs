//! The tokens of keys that move.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use dblock::open;
use dblock::store::{
    Acquire, Action, Capabilities, MemoryStore, Outcome, Request, Store, StoreError, StoreErrorKind,
    StoreFuture,
};
use dblock::{InspectFilter, Key, LockRow};
use dblock_tests::faulty_store::{Fault, Kind};
use tokio::time::timeout;

use crate::moves::{Move, acquire, answer, fresh, release, request, row, token};
use crate::{LONG, shards};

#[tokio::test]
async fn tokens_that_could_not_be_raised_are_not_given() {
    for at in [0, 1] {
        let moves = Move::new();
        let lease = fresh();
        // One row's tokens are ahead, so the other is raised.
        let (ahead, raised) = if at == 0 {
            (&moves.a.0, &moves.b.1)
        } else {
            (&moves.b.0, &moves.a.1)
        };
        set_ahead(ahead, 3_600).await;
        raised.next(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
        let refused = answer(&moves.store, acquire(lease)).await;
        assert_eq!(refused, Err(StoreErrorKind::Interrupted));
    }
}

/// The key's tokens on this shard are ahead of its clock.
async fn set_ahead(store: &MemoryStore, seconds: i64) {
    let lease = fresh();
    token(store, acquire(lease)).await;
    answer(store, release(lease)).await.unwrap();
    let mut ahead = row(store).await.unwrap();
    ahead.fence_ceiling = ahead.now.as_micros() + seconds * 1_000_000;
    open::memory::place(store, &[ahead]);
}

/// Old, moving and new processes take the key in turns, whichever shard's tokens are ahead, with and without
/// tokens that are kept free.
#[tokio::test]
async fn tokens_grow_whoever_takes_the_key() {
    for (old_ahead, new_ahead) in [(0, 0), (3_600, 0), (0, 3_600), (3_600, 3_600)] {
        for spare in [0, 1024, u32::MAX] {
            let moves = Move::new();
            if old_ahead > 0 {
                set_ahead(&moves.a.0, old_ahead).await;
            }
            let mut last = 0;
            let mut take = async |store: &dyn Store, who: &str| {
                let lease = fresh();
                let mut ask = Acquire::new(lease, LONG, "test");
                ask.spare_tokens = spare;
                let token = token(store, request(lease, Action::Acquire(ask))).await;
                assert!(
                    token > last,
                    "{who}: {token} after {last}, {old_ahead} {new_ahead} {spare}"
                );
                // All that were kept free may have been given.
                last = token + i64::from(spare);
                answer(store, release(lease)).await.unwrap();
            };
            for round in 0..4 {
                take(&moves.a.0, "old").await;
                take(&moves.store, "moving").await;
                if round == 1 && new_ahead > 0 {
                    set_ahead(&moves.b.0, new_ahead).await;
                }
            }
            for _ in 0..4 {
                take(&moves.store, "moving").await;
                take(&moves.b.0, "new").await;
            }
        }
    }
}

#[tokio::test]
async fn what_only_the_old_shard_knows_is_waited_for() {
    let moves = Move::new();
    assert_eq!(moves.store.time_left().await.unwrap(), Duration::ZERO);
    let lease = fresh();
    token(&moves.a.0, acquire(lease)).await;
    let left = moves.store.time_left().await.unwrap();
    assert!(
        left > LONG / 2 && left <= LONG,
        "the lease of an old process: {left:?}"
    );
    answer(&moves.a.0, release(lease)).await.unwrap();
    set_ahead(&moves.a.0, 3_600).await;
    let left = moves.store.time_left().await.unwrap();
    assert!(
        left > Duration::from_mins(50),
        "tokens ahead of the clock: {left:?}"
    );

    let lease = fresh();
    token(&moves.store, acquire(lease)).await;
    assert_eq!(
        moves.store.time_left().await.unwrap(),
        Duration::ZERO,
        "both know the lease, and its token"
    );
}

/// Hangs whatever it is asked.
#[derive(Debug)]
struct Hangs;

impl Store for Hangs {
    fn capabilities(&self) -> Capabilities {
        MemoryStore::new().capabilities()
    }

    fn apply<'a>(&'a self, _: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(pending())
    }

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(pending())
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(pending())
    }

    fn inspect<'a>(&'a self, _: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(pending())
    }

    fn revoke<'a>(&'a self, _: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(pending())
    }

    fn force_release<'a>(&'a self, _: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(pending())
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_hangs_is_not_waited_for_without_end() {
    let (one, other): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(MemoryStore::new()), Arc::new(Hangs));
    let store = shards([("a", &one)]).moving_to(shards([("b", &other)])).unwrap();
    let left = timeout(Duration::from_mins(10), store.time_left()).await;
    let error = left.expect("it hangs").unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("\"b\""), "{error}");
}
