//! Shared holds in the file: beside exclusive statements, and in tables of earlier versions.

use std::sync::Arc;

use dblock::LockRow;
use dblock::store::{Action, Extend, Outcome, Released, Request, Share, Store, StoreErrorKind};

use crate::schema::SCRIPTS;
use crate::{File, TTL, acquire, ask, asking, assert_error, execute, extend, granted, one, release, row};

/// An acquire of a shared hold.
fn share(key: &str) -> Request {
    let mut ask = ask(TTL);
    ask.limit = Some(u32::MAX);
    asking(key, ask)
}

fn extend_share(share: &Request) -> Request {
    let mut ask = Extend::new(1, TTL);
    ask.share = Some(Share::new(1, None));
    Request::new(share.key.clone(), share.lease_id, Action::Extend(ask))
}

/// An exclusive acquire that waits.
fn queueing(key: &str) -> Request {
    let mut ask = ask(TTL);
    (ask.wanted_for, ask.queue) = (Some(TTL), Some(TTL));
    asking(key, ask)
}

async fn shown(store: &dyn Store) -> LockRow {
    row(store, "k").await.unwrap()
}

#[tokio::test]
async fn a_table_of_an_earlier_version_keeps_exclusive_locks_only() {
    for earlier in 2..4 {
        let file = File::new();
        let mut user = file.user().await;
        execute(&mut user, &SCRIPTS[..earlier].concat()).await;
        let store = file.store();
        store.check_schema().await.unwrap();
        let (held, next) = (acquire("k", TTL), queueing("k"));
        granted(&*store, &held).await;
        for request in [share("k"), share("free"), extend_share(&held)] {
            assert_error(
                one(&*store, &request).await,
                StoreErrorKind::Schema,
                "no column `shared`",
            );
            assert_error(
                one(&*store, &request).await,
                StoreErrorKind::Schema,
                "locks.admin().migrate()",
            );
        }
        assert!(matches!(
            one(&*store, &extend(&held)).await,
            Ok(Outcome::Extended { .. })
        ));
        assert!(matches!(one(&*store, &next).await, Ok(Outcome::Queued { .. })));
        assert_eq!(
            one(&*store, &release(&acquire("k", TTL))).await.unwrap(),
            Outcome::Lost
        );
        assert_eq!(
            one(&*store, &release(&held)).await.unwrap(),
            Outcome::Released(Released::PassedOn)
        );
        assert_eq!(shown(&*store).await.lease_id, next.lease_id);

        store.migrate().await.unwrap();
        assert!(matches!(one(&*store, &share("k")).await, Ok(Outcome::Busy(_))));
        assert_eq!(
            one(&*store, &release(&next)).await.unwrap(),
            Outcome::Released(Released::Freed)
        );
        granted(&*store, &share("k")).await;
        granted(&*store, &share("k")).await;
        assert_eq!(shown(&*store).await.shared.len(), 2);
    }
}

/// A file whose key `k` two share.
async fn shared() -> (File, Arc<dyn Store>, [Request; 2]) {
    let file = File::migrated().await;
    let store = file.store();
    let both = [share("k"), share("k")];
    for request in &both {
        granted(&*store, request).await;
    }
    (file, store, both)
}

#[tokio::test]
async fn an_exclusive_request_beside_shared_holds_keeps_them() {
    let (_file, store, both) = shared().await;
    let next = queueing("k");
    assert!(matches!(one(&*store, &next).await, Ok(Outcome::Queued { .. })));
    let row = shown(&*store).await;
    assert_eq!((row.shared.len(), row.reentrant_count), (2, 2));
    assert_eq!(row.next.unwrap().lease_id, next.lease_id);
    assert!(matches!(
        one(&*store, &extend_share(&both[0])).await,
        Ok(Outcome::Extended { .. })
    ));
    let [first, second] = both.map(|request| release(&request));
    assert_eq!(
        one(&*store, &first).await.unwrap(),
        Outcome::Released(Released::Freed)
    );
    assert_eq!(
        one(&*store, &second).await.unwrap(),
        Outcome::Released(Released::PassedOn)
    );
    let row = shown(&*store).await;
    assert_eq!((row.lease_id, row.shared), (next.lease_id, vec![]));
    granted(&*store, &next).await;
}

#[tokio::test]
async fn holds_of_another_lease_count_for_nothing() {
    let (file, store, both) = shared().await;
    // As an older program that frees the key by force and takes it.
    let taken = acquire("k", TTL);
    let lease: String = taken.lease_id.simple().to_string();
    execute(
        &mut file.user().await,
        &format!("UPDATE distributed_lock SET lease_id = x'{lease}', reentrant_count = 1"),
    )
    .await;
    let row = shown(&*store).await;
    assert_eq!((row.lease_id, row.shared), (taken.lease_id, vec![]));
    for request in both.iter().flat_map(|it| [extend_share(it), release(it)]) {
        assert_eq!(one(&*store, &request).await.unwrap(), Outcome::Lost);
    }
    assert!(matches!(one(&*store, &share("k")).await, Ok(Outcome::Busy(_))));
    assert!(matches!(
        one(&*store, &extend(&taken)).await,
        Ok(Outcome::Extended { .. })
    ));
}

#[tokio::test]
async fn force_ends_all_shared_holds() {
    let (_file, store, both) = shared().await;
    assert!(store.force_release(&both[0].key).await.unwrap());
    for request in both.iter().flat_map(|it| [extend_share(it), release(it)]) {
        assert_eq!(one(&*store, &request).await.unwrap(), Outcome::Lost);
    }
    let alone = acquire("k", TTL);
    let token = granted(&*store, &alone).await;
    assert!(matches!(one(&*store, &both[0]).await, Ok(Outcome::Busy(_))));
    assert_eq!(
        one(&*store, &release(&alone)).await.unwrap(),
        Outcome::Released(Released::Freed)
    );
    assert!(granted(&*store, &share("k")).await > token);
    assert_eq!(shown(&*store).await.shared.len(), 1);
}
