//! Shared holds: rows that others have locked, many holds, and tables of earlier versions.

use std::time::Duration;

use dblock::LockRow;
use dblock::store::{Action, Extend, MySqlStore, Outcome, Released, Request, Share, Store, StoreErrorKind};

use crate::place::Place;
use crate::{TTL, acquire, ask, asking, extend, insist, key, kind, one, release, run, token};

/// An acquire of a shared hold.
fn share(name: &str) -> Request {
    let mut ask = ask();
    ask.limit = Some(u32::MAX);
    asking(name, ask)
}

fn extend_share(share: &Request) -> Request {
    let mut ask = Extend::new(2, TTL);
    ask.share = Some(Share::new(1, None));
    Request::new(share.key.clone(), share.lease_id, Action::Extend(ask))
}

/// An exclusive acquire that waits.
fn queueing(name: &str) -> Request {
    let mut ask = ask();
    (ask.wanted_for, ask.queue) = (Some(TTL), Some(TTL));
    asking(name, ask)
}

async fn shown(store: &MySqlStore) -> LockRow {
    store.row(&key("k")).await.unwrap().unwrap()
}

/// A table whose key `k` two share.
async fn shared() -> Option<(Place, MySqlStore, [Request; 2])> {
    let place = Place::migrated().await?;
    let store = place.store();
    let both = [share("k"), share("k")];
    for request in &both {
        token(&one(&store, request.clone()).await);
    }
    Some((place, store, both))
}

#[tokio::test]
async fn a_table_of_an_earlier_version_keeps_exclusive_locks_only() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let table = &place.table;
    let earlier = format!("ALTER TABLE {table} DROP COLUMN shared; UPDATE {table}_version SET version = 3");
    place.run(&earlier).await;
    let store = place.store();
    store.check_schema().await.unwrap();
    let (held, next) = (acquire("k"), queueing("k"));
    token(&one(&store, held.clone()).await);
    for request in [share("k"), share("free"), extend_share(&held), share("k")] {
        let (kind, text) = kind(store.apply(&[request]).await.pop().unwrap());
        assert_eq!(kind, StoreErrorKind::Schema, "{text}");
        assert!(
            text.contains("no column `shared`") && text.contains("locks.admin().migrate()"),
            "{text}"
        );
    }
    assert!(matches!(
        one(&store, extend(&held, 1)).await,
        Outcome::Extended { .. }
    ));
    assert!(matches!(one(&store, next.clone()).await, Outcome::Queued { .. }));
    assert_eq!(one(&store, release(&acquire("k"))).await, Outcome::Lost);
    assert_eq!(
        one(&store, release(&held)).await,
        Outcome::Released(Released::PassedOn)
    );
    assert_eq!(shown(&store).await.lease_id, next.lease_id);
    assert_eq!(crate::row(&store, "k").await.lease_id, next.lease_id);
    assert_eq!(store.rows(&[key("k")]).await.len(), 1);

    place.store().migrate().await.unwrap();
    assert!(matches!(one(&store, share("k")).await, Outcome::Busy(_)));
    assert_eq!(
        one(&store, release(&next)).await,
        Outcome::Released(Released::Freed)
    );
    for _ in 0..2 {
        token(&one(&store, share("k")).await);
    }
    let rows = store.rows(&[key("k")]).await;
    let read = rows[0].as_ref().unwrap().as_ref().unwrap();
    for row in [read, &shown(&store).await, &crate::row(&store, "k").await] {
        assert_eq!((row.shared.len(), row.reentrant_count), (2, 2));
    }
}

#[tokio::test]
async fn a_locked_row_is_skipped() {
    let Some((place, store, both)) = shared().await else {
        return;
    };
    let mut user = place.connection().await;
    let lock = format!("START TRANSACTION; SELECT 1 FROM {} FOR UPDATE", place.table);
    run(&mut user, &lock).await;
    let lost = share("k");
    for request in [
        share("k"),
        extend_share(&both[0]),
        extend_share(&lost),
        release(&both[1]),
        release(&lost),
    ] {
        assert_eq!(
            one(&store, request.clone()).await,
            Outcome::Skipped,
            "{request:?}"
        );
    }
    run(&mut user, "ROLLBACK").await;
    let batch = [release(&both[1]), share("other")];
    for (request, answer) in batch.iter().zip(store.apply(&batch).await) {
        let answer = answer.unwrap();
        let fits = matches!(
            answer,
            Outcome::Released(Released::Freed) | Outcome::Granted { .. }
        );
        assert!(fits, "{request:?}: {answer:?}");
    }
    assert_eq!(one(&store, extend_share(&lost)).await, Outcome::Lost);
    let row = shown(&store).await;
    assert_eq!((row.shared[0].lease_id, row.shared.len()), (both[0].lease_id, 1));
}

#[tokio::test]
async fn holds_of_another_lease_count_for_nothing() {
    let Some((place, store, both)) = shared().await else {
        return;
    };
    // As an older program that frees the key by force and takes it.
    let taken = acquire("k");
    let lease = taken.lease_id.simple();
    let take = format!(
        "UPDATE {} SET lease_id = X'{lease}', reentrant_count = 1",
        place.table
    );
    place.run(&take).await;
    let row = shown(&store).await;
    assert_eq!((row.lease_id, row.shared), (taken.lease_id, vec![]));
    for request in both.iter().flat_map(|it| [extend_share(it), release(it)]) {
        assert_eq!(one(&store, request).await, Outcome::Lost);
    }
    assert!(matches!(one(&store, share("k")).await, Outcome::Busy(_)));

    assert!(store.force_release(&taken.key).await.unwrap());
    let again = share("k");
    token(&one(&store, again.clone()).await);
    assert!(store.force_release(&again.key).await.unwrap());
    for request in [extend_share(&again), release(&again)] {
        assert_eq!(one(&store, request).await, Outcome::Lost);
    }
    token(&one(&store, acquire("k")).await);
}

/// More than a column of the type TEXT could keep.
#[tokio::test]
async fn five_hundred_share_beside_one_who_waits() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    // Longer than a busy machine needs for all of them.
    let long = Duration::from_mins(10);
    let mut all = Vec::new();
    for _ in 0..500 {
        let mut ask = ask();
        ask.ttl = long;
        ask.limit = Some(500);
        ask.holder = "\u{1f512}".repeat(60).into();
        all.push(asking("k", ask));
        token(&insist(&store, all[all.len() - 1].clone()).await);
    }
    let mut next = ask();
    (next.wanted_for, next.queue) = (Some(long), Some(TTL));
    let next = asking("k", next);
    assert!(matches!(one(&store, next.clone()).await, Outcome::Queued { .. }));
    let row = shown(&store).await;
    assert_eq!((row.shared.len(), row.reentrant_count), (500, 500));
    assert_eq!(row.shared[499].holder.chars().count(), 60);
    let mut one_more = ask();
    one_more.limit = Some(500);
    assert!(matches!(
        one(&store, asking("k", one_more)).await,
        Outcome::Busy(_)
    ));
    let (last, others) = all.split_last().unwrap();
    for request in others {
        let freed = insist(&store, release(request)).await;
        assert_eq!(freed, Outcome::Released(Released::Freed));
    }
    let passed_on = insist(&store, release(last)).await;
    assert_eq!(passed_on, Outcome::Released(Released::PassedOn));
    assert_eq!(shown(&store).await.lease_id, next.lease_id);
}
