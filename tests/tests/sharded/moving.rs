//! Keys that move are held on both shards: request by request, with what can go wrong between the two.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dblock::store::{MemoryStore, NEXT_TTL, Outcome, Released, Store, StoreErrorKind};
use dblock::{LockError, LockManager, open};
use dblock_sharded::ShardedStore;
use dblock_tests::faulty_store::{Fault, Kind};
use futures_util::FutureExt as _;
use tokio::time::sleep;
use uuid::Uuid;

use crate::moves::{Move, acquire, answer, extend, fresh, queue, release, token};
use crate::{LONG, key, long, shards};

#[tokio::test]
async fn who_moves_excludes_the_old_and_the_new_and_is_excluded_by_both() {
    let moves = Move::new();
    let lease = fresh();
    token(&moves.store, acquire(lease)).await;
    for other in [&moves.a.0, &moves.b.0] {
        let refused = answer(other, acquire(fresh())).await;
        assert!(matches!(refused, Ok(Outcome::Busy(_))), "{refused:?}");
    }
    let released = answer(&moves.store, release(lease)).await;
    assert_eq!(released, Ok(Outcome::Released(Released::Freed)));
    for other in [&moves.a.0, &moves.b.0] {
        let (theirs, ours) = (fresh(), fresh());
        token(other, acquire(theirs)).await;
        let refused = answer(&moves.store, acquire(ours)).await;
        assert!(
            matches!(&refused, Ok(Outcome::Busy(holder)) if holder.owner == theirs),
            "{refused:?}"
        );
        assert_eq!(moves.held_by(ours).await, [false; 2], "nothing is left of it");
        answer(other, release(theirs)).await.unwrap();
    }
}

#[tokio::test]
async fn what_failed_between_the_rows_leaves_nothing_that_is_not_told() {
    use StoreErrorKind::{Conflict, Interrupted, Unreachable};
    let fail = Fault::Fail;
    // The fault of the new row's acquire, that of the old row's release, the answer, and what is held then.
    for (new, undo, told, held) in [
        (fail(Unreachable), None, Unreachable, [false, false]),
        (fail(Conflict), None, Conflict, [false, false]),
        (
            fail(Unreachable),
            Some(fail(Unreachable)),
            Interrupted,
            [true, false],
        ),
        (
            fail(Unreachable),
            Some(Fault::ReplyLost),
            Interrupted,
            [false, false],
        ),
        (Fault::ReplyLost, None, Interrupted, [true, true]),
    ] {
        let moves = Move::new();
        let lease = fresh();
        // A conflict is tried a few times.
        for _ in 0..if told == Conflict { 5 } else { 1 } {
            moves.b.1.next(Kind::Acquire, new.clone());
        }
        if let Some(undo) = undo {
            moves.a.1.next(Kind::Release, undo);
        }
        assert_eq!(answer(&moves.store, acquire(lease)).await, Err(told), "{new:?}");
        assert_eq!(moves.held_by(lease).await, held, "{new:?}");
        moves.a.1.heal();
        // The engine sends this after an unknown outcome.
        answer(&moves.store, release(lease)).await.unwrap();
        assert_eq!(moves.held_by(lease).await, [false; 2], "{new:?}");
    }
}

#[tokio::test]
async fn a_lease_is_extended_on_both_rows_or_not() {
    let moves = Move::new();
    let lease = fresh();
    token(&moves.store, acquire(lease)).await;
    moves
        .b
        .1
        .next(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
    let half = answer(&moves.store, extend(lease)).await;
    assert_eq!(half, Err(StoreErrorKind::Interrupted), "it is sent again");
    let both = answer(&moves.store, extend(lease)).await;
    assert!(matches!(both, Ok(Outcome::Extended { .. })), "{both:?}");
}

/// So whoever gets the old row gets the new one, too.
#[tokio::test]
async fn the_new_row_is_released_before_the_old_one() {
    let moves = Move::new();
    let lease = fresh();
    token(&moves.store, acquire(lease)).await;
    moves.b.1.next(Kind::Release, Fault::Never);
    assert_eq!(answer(&moves.store, release(lease)).now_or_never(), None);
    assert_eq!(moves.held_by(lease).await, [true; 2]);
}

/// Nobody has to wait for the end of the other row.
#[tokio::test]
async fn a_lease_that_one_row_has_lost_is_over_on_both() {
    for at in [0, 1] {
        let moves = Move::new();
        let lease = fresh();
        token(&moves.store, acquire(lease)).await;
        let lost = if at == 0 { &moves.a.0 } else { &moves.b.0 };
        lost.force_release(&key("k")).await.unwrap();
        assert_eq!(answer(&moves.store, extend(lease)).await, Ok(Outcome::Lost));
        assert_eq!(moves.held_by(lease).await, [false; 2]);
    }
}

/// When a process dies that waits for the new row, its old row is busy for no longer than a successor is
/// waited for.
#[tokio::test]
async fn who_waits_has_the_old_row_for_a_short_time() {
    let moves = Move::new();
    let (holder, waits) = (fresh(), fresh());
    token(&moves.b.0, acquire(holder)).await;
    let old_row_left = async || {
        let queued = answer(&moves.store, queue(waits)).await;
        assert!(matches!(queued, Ok(Outcome::Queued { .. })), "{queued:?}");
        assert_eq!(moves.held_by(waits).await, [true, false]);
        let [old, _] = moves.rows().await.map(Option::unwrap);
        (old.expire_at.since(old.now), old)
    };
    let (left, mut old) = old_row_left().await;
    assert!(left <= NEXT_TTL, "{left:?}");
    // It keeps that as long as it asks.
    old.expire_at = old.now + Duration::from_secs(1);
    open::memory::place(&moves.a.0, &[old]);
    let (left, _) = old_row_left().await;
    assert!(left > NEXT_TTL / 2, "{left:?}");

    // A grant has its whole length all the same.
    for lease in [holder, waits] {
        answer(&moves.b.0, release(lease)).await.unwrap();
    }
    answer(&moves.a.0, release(waits)).await.unwrap();
    let granted = answer(&moves.store, queue(fresh())).await;
    assert!(
        matches!(granted, Ok(Outcome::Granted { remaining: LONG, .. })),
        "{granted:?}"
    );
    for row in moves.rows().await.map(Option::unwrap) {
        assert!(row.expire_at.since(row.now) > LONG / 2, "{row:?}");
    }
}

/// A lease that waits is next on the old row; then it holds that and is next on the new one; then it has
/// both.
#[tokio::test]
async fn a_waiting_lease_keeps_what_it_has_until_it_has_both() {
    let moves = Move::new();
    let (old, new, waits) = (fresh(), fresh(), fresh());
    token(&moves.a.0, acquire(old)).await;
    token(&moves.b.0, acquire(new)).await;
    let behind = async |holder: Uuid| {
        let queued = answer(&moves.store, queue(waits)).await;
        assert!(
            matches!(&queued, Ok(Outcome::Queued { holder: ahead, .. }) if ahead.owner == holder),
            "{queued:?}"
        );
    };
    behind(old).await;
    let passed_on = Ok(Outcome::Released(Released::PassedOn));
    assert_eq!(answer(&moves.a.0, release(old)).await, passed_on);
    behind(new).await;
    assert_eq!(moves.held_by(waits).await, [true, false]);
    assert_eq!(answer(&moves.b.0, release(new)).await, passed_on);
    token(&moves.store, queue(waits)).await;
    assert_eq!(moves.held_by(waits).await, [true; 2]);

    // And one that gives up has nothing.
    let (holder, gives_up) = (waits, fresh());
    answer(&moves.store, release(holder)).await.unwrap();
    token(&moves.b.0, acquire(new)).await;
    let lapsed = answer(&moves.store, queue(gives_up)).await;
    assert!(matches!(lapsed, Ok(Outcome::Queued { .. })), "{lapsed:?}");
    assert_eq!(
        answer(&moves.store, release(gives_up)).await,
        Ok(Outcome::Withdrawn)
    );
    let [old, new] = moves.rows().await.map(Option::unwrap);
    assert!(!old.is_held() && new.next.is_none(), "{old:?} {new:?}");
}

/// Callers that wait in processes of all three kinds get in, one at a time.
#[tokio::test]
async fn nobody_starves_while_keys_move() {
    let moves = Move::new();
    let inside = AtomicUsize::new(0);
    let moving = [(); 2].map(|()| {
        let [a, b] = [&moves.a.0, &moves.b.0].map(|rows| Arc::new(rows.clone()) as Arc<dyn Store>);
        let store = shards([("a", &a)]).moving_to(shards([("b", &b)])).unwrap();
        LockManager::builder(store).build_lazy().unwrap()
    });
    for others in [&moves.a.0, &moves.b.0] {
        let others = [others, others].map(|store| LockManager::builder(store.clone()).build_lazy().unwrap());
        let callers = moving.iter().chain(&others).map(|locks| async {
            for _ in 0..10 {
                let alone = locks.lock("k").options(&long()).wait(LONG).run(async {
                    let before = inside.fetch_add(1, Ordering::SeqCst);
                    sleep(Duration::from_millis(5)).await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    before == 0
                });
                assert!(alone.await.unwrap(), "somebody else was inside");
            }
        });
        futures_util::future::join_all(callers).await;
    }
}

#[test]
fn what_cannot_move_is_refused() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = runtime.enter();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let invalid = |result: Result<ShardedStore, LockError>, says: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    };
    let named = |names: &[&str]| ShardedStore::new(names.iter().map(|name| (*name, Arc::clone(&store))));
    invalid(named(&[]), "at least one shard");
    invalid(named(&["a", "a"]), "a name of its own");
    invalid(named(&[""]), "a name of its own");
    let nested: Arc<dyn Store> = Arc::new(named(&["a", "b"]).unwrap());
    invalid(ShardedStore::new([("c", nested)]), "has shards itself");
    let moving = named(&["a"])
        .unwrap()
        .moving_to(named(&["a", "b"]).unwrap())
        .unwrap();
    invalid(
        moving.moving_to(named(&["a"]).unwrap()),
        "finish the first change",
    );
}
