//! The whole suite, on a real server.

use std::sync::Arc;
use std::time::Duration;

use dblock_conformance::Fixture;
use dblock_core::store::{Acquire, Action, Outcome, Released, Request, Store, StoreErrorKind, Successor};
use dblock_core::{Key, LockError, LockRow};
use futures_util::future::join_all;
use uuid::Uuid;

use super::{LONGEST_SESSION, SHORTEST_SESSION, ZookeeperStore, rows};
use crate::rows::{Found, Put};
use crate::session::Ensemble;

/// Nodes of their own on the server of `DBLOCK_TEST_ZOOKEEPER_URL`.
pub(crate) struct Place {
    pub(crate) url: String,
}

impl Place {
    pub(crate) fn new() -> Option<Self> {
        let node = Uuid::now_v7().simple().to_string();
        dblock_tests::zookeeper_url().map(|url| Self {
            url: format!("{url}/suite/{node}"),
        })
    }

    pub(crate) fn open(&self) -> ZookeeperStore {
        ZookeeperStore::new(&self.url).unwrap()
    }
}

impl Fixture for Place {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    async fn place(&self, placed: &[LockRow]) -> bool {
        let ensemble = self.open().ensemble;
        // A node that is replaced makes the other writes look again.
        let written = placed.iter().map(async |row| {
            loop {
                let mut found = found(&ensemble, &row.key).await;
                found.row = row.clone();
                let client = ensemble.client().await.unwrap();
                match rows::put(&ensemble, &client, &found).await {
                    Ok(Put::Written) => break,
                    Ok(_) => {}
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        });
        join_all(written).await;
        true
    }
}

dblock_tests::conformance!(Place::new());

/// A connection may break on a busy machine. A read is then repeated.
pub(crate) async fn found(ensemble: &Ensemble, key: &Key) -> Found {
    let read = async || {
        let client = ensemble.client().await?;
        rows::read(ensemble, &client, &[key]).await
    };
    loop {
        match read().await {
            Ok(found) => return found.into_iter().next().unwrap().unwrap(),
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

async fn put(ensemble: &Ensemble, found: &Found) -> Put {
    let client = ensemble.client().await.unwrap();
    rows::put(ensemble, &client, found).await.unwrap()
}

/// Writes the row of `key` with the token, as an owner does.
async fn write(ensemble: &Ensemble, key: &Key, token: i64) {
    let mut found = found(ensemble, key).await;
    found.row.fence_token = token;
    assert_eq!(put(ensemble, &found).await, Put::Written);
}

async fn delete(ensemble: &Ensemble, found: Found) -> u64 {
    let client = ensemble.client().await.unwrap();
    rows::delete(ensemble, &client, &[found]).await.unwrap()
}

#[tokio::test]
async fn a_purge_of_more_rows_than_one_message_has_deletes_all() {
    let Some(place) = Place::new() else { return };
    let ensemble = place.open().ensemble;
    let keys: Vec<_> = (0..201)
        .map(|n| Key::new(None, &format!("k{n}")).unwrap())
        .collect();
    join_all(keys.iter().map(|key| write(&ensemble, key, 1))).await;
    let client = ensemble.client().await.unwrap();
    let keys: Vec<_> = keys.iter().collect();
    let found = rows::read(&ensemble, &client, &keys).await.unwrap();
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    assert_eq!(rows::delete(&ensemble, &client, &found).await.unwrap(), 201);
}

/// The row as it was read before another purge, and a new one with the same version in its place.
async fn purged_and_made_again(ensemble: &Ensemble, key: &Key) -> Found {
    write(ensemble, key, 1).await;
    write(ensemble, key, 2).await;
    let stale = found(ensemble, key).await;
    assert_eq!(delete(ensemble, found(ensemble, key).await).await, 1);
    write(ensemble, key, 3).await;
    write(ensemble, key, 4).await;
    assert_eq!(found(ensemble, key).await.version, stale.version);
    stale
}

#[tokio::test]
async fn a_late_purge_leaves_a_row_that_was_made_again() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    let stale = purged_and_made_again(&ensemble, &key).await;
    assert_eq!(delete(&ensemble, stale).await, 0);
    assert_eq!(found(&ensemble, &key).await.row.fence_token, 4);
}

#[tokio::test]
async fn a_late_write_leaves_a_row_that_was_made_again() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    let stale = purged_and_made_again(&ensemble, &key).await;
    assert_eq!(put(&ensemble, &stale).await, Put::Outrun);
    assert_eq!(found(&ensemble, &key).await.row.fence_token, 4);
}

#[tokio::test]
async fn a_late_write_leaves_a_node_that_was_replaced() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    write(&ensemble, &key, 1).await;
    write(&ensemble, &key, 2).await;
    let stale = found(&ensemble, &key).await;
    for token in 3.. {
        write(&ensemble, &key, token).await;
        let found = found(&ensemble, &key).await;
        if token > 10 && found.version == stale.version {
            break;
        }
    }
    assert_eq!(put(&ensemble, &stale).await, Put::Outrun);
}

/// A held row with a successor that is live for a moment, as its holder reads it before the release.
async fn about_to_be_released(ensemble: &Ensemble, key: &Key) -> Found {
    const MOMENT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_mins(5);
    let mut found = found(ensemble, key).await;
    let (id, now) = (Uuid::now_v7(), found.row.now);
    found.row.lease_id = id;
    found.row.reentrant_count = 1;
    found.row.expire_at = now + LONG;
    found.row.next = Some(Successor {
        lease_id: id,
        owner: id,
        holder: "next".into(),
        ttl: LONG,
        spare_tokens: 0,
        since: now,
        until: now + MOMENT,
        limit: None,
    });
    assert_eq!(put(ensemble, &found).await, Put::Written);
    let client = ensemble.client().await.unwrap();
    let mut found = rows::glance(&ensemble.place, &client, &[key]).await.unwrap();
    found.remove(0).unwrap()
}

/// `None`: somebody was faster.
async fn release(ensemble: &Ensemble, found: Found) -> Option<Outcome> {
    let client = ensemble.client().await.unwrap();
    let release = Request::new(found.row.key.clone(), found.row.lease_id, Action::Release);
    let released = rows::put_with(ensemble, &client, &release, found).await.unwrap();
    released.map(|(outcome, _)| outcome)
}

#[tokio::test]
async fn a_release_is_carried_out_at_the_time_of_its_write() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    // On a slow machine the moment may be over when the row is written.
    let read = loop {
        let read = about_to_be_released(&ensemble, &key).await;
        if read.row.next.as_ref().unwrap().until > read.row.now {
            break read;
        }
    };
    loop {
        let row = found(&ensemble, &key).await.row;
        if row.next.unwrap().until <= row.now {
            break;
        }
    }
    let released = release(&ensemble, read).await;
    assert_eq!(
        released,
        Some(Outcome::Released(Released::Freed)),
        "the successor has lapsed by now"
    );
    let row = found(&ensemble, &key).await.row;
    assert_eq!((row.reentrant_count, row.next), (0, None));
}

#[tokio::test]
async fn a_release_leaves_a_row_that_was_written_since_it_was_read() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    let read = about_to_be_released(&ensemble, &key).await;
    write(&ensemble, &key, 7).await;
    assert_eq!(release(&ensemble, read).await, None);
    let row = found(&ensemble, &key).await.row;
    assert_eq!((row.reentrant_count, row.fence_token), (1, 7));
}

#[tokio::test]
async fn a_late_release_leaves_a_row_that_was_made_again() {
    let Some(place) = Place::new() else { return };
    let (ensemble, key) = (place.open().ensemble, Key::new(None, "k").unwrap());
    let stale = purged_and_made_again(&ensemble, &key).await;
    assert_eq!(release(&ensemble, stale).await, None);
    assert_eq!(found(&ensemble, &key).await.row.fence_token, 4);
}

pub(crate) fn acquire(key: &Key) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    Request::new(key.clone(), Uuid::now_v7(), Action::Acquire(ask))
}

/// Takes the lock. Returns the request that releases it.
pub(crate) async fn granted(store: &ZookeeperStore, acquire: Request) -> Request {
    let mut tries = 0..5;
    let answer = loop {
        // A busy machine may open no session in time. Nothing was sent then.
        match store.apply(std::slice::from_ref(&acquire)).await.remove(0) {
            Err(error) if error.kind() == StoreErrorKind::Unreachable && tries.next().is_some() => {}
            answer => break answer,
        }
    };
    assert!(matches!(answer, Ok(Outcome::Granted { .. })), "{answer:?}");
    Request::new(acquire.key, acquire.lease_id, Action::Release)
}

#[tokio::test]
async fn a_release_keeps_its_answer_when_the_rest_of_its_batch_fails() {
    let Some(place) = Place::new() else { return };
    let store = place.open();
    let [key, other] = ["k", "other"].map(|key| Key::new(None, key).unwrap());
    let release = granted(&store, acquire(&key)).await;
    granted(&place.open(), acquire(&other)).await;
    let client = store.ensemble.client().await.unwrap();
    // A release needs no clock, and an ask for a lock that somebody holds needs it.
    client.delete(&store.ensemble.place.clock(), None).await.unwrap();
    let answers = store.apply(&[acquire(&other), release]).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    assert!(
        matches!(answers[1], Ok(Outcome::Released(Released::Freed))),
        "{answers:?}"
    );
}

#[test]
fn a_session_that_is_too_short_or_too_long_is_refused() {
    let store = ZookeeperStore::new("zookeeper://one").unwrap();
    for (length, is_good) in [
        (Duration::ZERO, false),
        (Duration::from_millis(999), false),
        (SHORTEST_SESSION, true),
        (LONGEST_SESSION, true),
        (Duration::MAX, false),
    ] {
        let made = store.clone().session_timeout(length);
        assert_eq!(made.is_ok(), is_good, "{length:?}");
        assert!(matches!(made, Ok(_) | Err(LockError::Invalid { .. })), "{made:?}");
    }
}
