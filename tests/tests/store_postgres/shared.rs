//! Shared holds: rows that others have locked, tables of earlier versions, and wake-ups.

use std::time::Duration;

use dblock::LockRow;
use dblock::store::clock::Timestamp;
use dblock::store::{
    Action, Extend, Outcome, PostgresStore, Released, Request, Share, Store, StoreErrorKind, WakeUp,
};
use dblock_tests::proxy::{Proxy, Traffic};
use futures_util::FutureExt as _;
use sqlx::{AssertSqlSafe, Connection as _};

use crate::bench::{Bench, TTL, acquire, ask, ask_of, extend, key, one, queueing, release, token, waiting};
use crate::wake_ups::Listener;

/// An acquire of a shared hold.
fn share(name: &str) -> Request {
    let mut request = acquire(name);
    ask_of(&mut request).limit = Some(u32::MAX);
    request
}

fn extend_share(share: &Request, number: u64, count: u32) -> Request {
    let mut ask = Extend::new(count, TTL);
    ask.share = Some(Share::new(number, None));
    Request::new(share.key.clone(), share.lease_id, Action::Extend(ask))
}

async fn shown(store: &PostgresStore) -> LockRow {
    store.row(&key("k")).await.unwrap().unwrap()
}

/// A table whose key `k` two share.
async fn shared(name: &str) -> Option<(Bench, PostgresStore, [Request; 2])> {
    let bench = Bench::new(name).await?;
    let store = bench.store();
    let both = [share("k"), share("k")];
    for request in &both {
        token(&ask(&store, request).await);
    }
    Some((bench, store, both))
}

#[tokio::test]
async fn a_table_of_an_earlier_version_keeps_exclusive_locks_only() {
    let Some(bench) = Bench::new("shared_earlier").await else {
        return;
    };
    bench
        .run("ALTER TABLE {t} DROP COLUMN shared; UPDATE {t}_version SET version = 3")
        .await;
    let store = bench.store();
    store.check_schema().await.unwrap();
    let (held, next) = (acquire("k"), queueing("k", TTL));
    token(&ask(&store, &held).await);
    for request in [share("k"), share("free"), extend_share(&held, 1, 1)] {
        let refused = one(&store, &request).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Schema, "{refused}");
        let refused = refused.to_string();
        assert!(
            refused.contains("no column `shared`") && refused.contains("locks.admin().migrate()"),
            "{refused}"
        );
    }
    assert!(matches!(
        ask(&store, &extend(&held, 1)).await,
        Outcome::Extended { .. }
    ));
    assert!(matches!(ask(&store, &next).await, Outcome::Queued { .. }));
    assert_eq!(ask(&store, &release(&acquire("k"))).await, Outcome::Lost);
    let passed_on = ask(&store, &release(&held)).await;
    assert_eq!(passed_on, Outcome::Released(Released::PassedOn));
    assert_eq!(shown(&store).await.lease_id, next.lease_id);

    bench.store().migrate().await.unwrap();
    assert!(matches!(ask(&store, &share("k")).await, Outcome::Busy(_)));
    assert_eq!(
        ask(&store, &release(&next)).await,
        Outcome::Released(Released::Freed)
    );
    for _ in 0..2 {
        token(&ask(&store, &share("k")).await);
    }
    for rows in [
        &store.rows(&[key("k")]).await,
        &vec![Ok(Some(shown(&store).await))],
    ] {
        let row = rows[0].as_ref().unwrap().as_ref().unwrap();
        assert_eq!((row.shared.len(), row.reentrant_count), (2, 2));
    }
}

#[tokio::test]
async fn a_locked_row_is_skipped() {
    let Some((bench, store, both)) = shared("shared_locked").await else {
        return;
    };
    let mut user = bench.user().await;
    let mut open = user.begin().await.unwrap();
    let lock = AssertSqlSafe(format!("SELECT 1 FROM {} FOR UPDATE", bench.table));
    sqlx::query(lock).execute(&mut *open).await.unwrap();
    let lost = share("k");
    for request in [
        share("k"),
        extend_share(&both[0], 1, 2),
        extend_share(&lost, 1, 2),
        release(&both[1]),
        release(&lost),
    ] {
        assert_eq!(ask(&store, &request).await, Outcome::Skipped, "{request:?}");
    }
    open.rollback().await.unwrap();
    let batch = [release(&both[1]), share("other"), extend_share(&lost, 1, 2)];
    for (request, answer) in batch.iter().zip(store.apply(&batch[..2]).await) {
        let answer = answer.unwrap();
        let fits = matches!(
            answer,
            Outcome::Released(Released::Freed) | Outcome::Granted { .. }
        );
        assert!(fits, "{request:?}: {answer:?}");
    }
    assert_eq!(ask(&store, &batch[2]).await, Outcome::Lost);
    let row = shown(&store).await;
    assert_eq!((row.shared[0].lease_id, row.shared.len()), (both[0].lease_id, 1));
}

/// The release reads the row, and writes it a while later. The successor may ask again in between, which changes nothing.
#[tokio::test]
async fn a_lease_that_is_passed_on_lasts_as_long_as_its_successor_was_told() {
    let Some((bench, store, [first, last])) = shared("shared_late").await else {
        return;
    };
    let next = queueing("k", TTL);
    assert!(matches!(ask(&store, &next).await, Outcome::Queued { .. }));
    token(&ask(&store, &first).await);
    assert!(matches!(
        ask(&store, &release(&first)).await,
        Outcome::Released(_)
    ));
    let proxy = Proxy::start(bench.address());
    let slow = bench.store_at(proxy.address());
    slow.check_schema().await.unwrap();
    proxy.set(Traffic::Slow(Duration::from_millis(200)));
    let release = release(&last);
    let releases = ask(&slow, &release);
    tokio::pin!(releases);
    let mut told = Timestamp::default();
    let answer = loop {
        if let Some(answer) = releases.as_mut().now_or_never() {
            break answer;
        }
        let now = shown(&store).await.now;
        if let Outcome::Queued { next_ttl, .. } = ask(&store, &next).await {
            told = now + next_ttl;
        }
    };
    assert_eq!(answer, Outcome::Released(Released::PassedOn));
    let row = shown(&store).await;
    assert_eq!(row.lease_id, next.lease_id);
    assert!(row.expire_at >= told, "{row:?}, {told:?}");
}

/// Others write the row each time between its being read and written.
#[tokio::test]
async fn a_release_that_is_outrun_is_not_lost() {
    let Some((bench, store, [stays, leaves])) = shared("shared_outrun").await else {
        return;
    };
    let proxy = Proxy::start(bench.address());
    let slow = bench.store_at(proxy.address());
    // The store knows that the key is shared.
    let known = ask(&slow, &extend_share(&leaves, 1, 1)).await;
    assert!(matches!(known, Outcome::Extended { .. }), "{known:?}");
    proxy.set(Traffic::Slow(Duration::from_millis(100)));
    let release = release(&leaves);
    let releases = ask(&slow, &release);
    tokio::pin!(releases);
    let mut number = 1;
    let answer = loop {
        if let Some(answer) = releases.as_mut().now_or_never() {
            break answer;
        }
        number += 1;
        ask(&store, &extend_share(&stays, number, 1)).await;
    };
    assert_eq!(answer, Outcome::Skipped);
    proxy.set(Traffic::Flows);
    assert_eq!(ask(&slow, &release).await, Outcome::Released(Released::Freed));
}

#[tokio::test]
async fn holds_of_another_lease_count_for_nothing() {
    let Some((bench, store, both)) = shared("shared_stale").await else {
        return;
    };
    // As an older program that frees the key by force and takes it.
    let taken = acquire("k");
    let lease = taken.lease_id;
    bench
        .run(&format!(
            "UPDATE {{t}} SET lease_id = '{lease}', reentrant_count = 1"
        ))
        .await;
    let row = shown(&store).await;
    assert_eq!((row.lease_id, row.shared), (lease, vec![]));
    for request in both.iter().flat_map(|it| [extend_share(it, 1, 1), release(it)]) {
        assert_eq!(ask(&store, &request).await, Outcome::Lost);
    }
    assert!(matches!(ask(&store, &share("k")).await, Outcome::Busy(_)));
    assert!(matches!(
        ask(&store, &extend(&taken, 1)).await,
        Outcome::Extended { .. }
    ));

    assert!(store.force_release(&taken.key).await.unwrap());
    let again = share("k");
    token(&ask(&store, &again).await);
    assert!(store.force_release(&again.key).await.unwrap());
    for request in [extend_share(&again, 1, 1), release(&again)] {
        assert_eq!(ask(&store, &request).await, Outcome::Lost);
    }
    token(&ask(&store, &acquire("k")).await);
}

/// What leaves room, or passes the row on, is told if somebody waits.
#[tokio::test]
async fn those_that_wait_are_told() {
    let Some((bench, store, [first, second])) = shared("shared_told").await else {
        return;
    };
    let mut listener = Listener::listening(bench.store()).await;
    let may_enter = |inside| WakeUp::may_enter(key("k"), inside, None);
    // Nobody waits yet.
    ask(&store, &extend_share(&first, 1, 3)).await;
    ask(&store, &extend_share(&first, 2, 2)).await;
    let mut waits = waiting("k", TTL);
    ask_of(&mut waits).limit = Some(1);
    assert!(matches!(ask(&store, &waits).await, Outcome::Busy(_)));
    ask(&store, &extend_share(&first, 3, 1)).await;
    assert_eq!(listener.next().await, may_enter(2));
    // Nobody leaves.
    ask(&store, &extend_share(&first, 4, 1)).await;
    assert_eq!(
        ask(&store, &release(&second)).await,
        Outcome::Released(Released::Freed)
    );
    assert_eq!(listener.next().await, may_enter(1));
    let next = queueing("k", TTL);
    assert!(matches!(ask(&store, &next).await, Outcome::Queued { .. }));
    assert_eq!(
        ask(&store, &release(&first)).await,
        Outcome::Released(Released::PassedOn)
    );
    let row = shown(&store).await;
    let passed_on = WakeUp::passed_on(key("k"), next.lease_id, row.fence_token);
    assert_eq!(listener.next().await, passed_on);
}
