//! On a real server.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::slice;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::{
    Action, Extend, Outcome, Released, Request, Store as _, StoreError, StoreErrorKind, WakeUp,
};
use dblock_tests::proxy::{Proxy, Trick};

use super::Held;
use crate::ZookeeperStore;
use crate::rows::Found;
use crate::tests::{Place, acquire, found, granted};

/// ZooKeeper's numbers of these requests.
const GET_DATA: i32 = 4;
const PING: i32 = 11;
const MULTI: i32 = 14;

fn key() -> Key {
    Key::new(None, "k").unwrap()
}

async fn one(store: &ZookeeperStore, request: &Request) -> Result<Outcome, StoreError> {
    store.apply(slice::from_ref(request)).await.remove(0)
}

/// Makes a lease the successor of the holder. Returns the lease's acquire.
async fn queued(store: &ZookeeperStore) -> Request {
    let mut request = acquire(&key());
    if let Action::Acquire(ask) = &mut request.action {
        ask.wanted_for = Some(Duration::from_secs(3));
        ask.queue = Some(Duration::ZERO);
    }
    let answer = one(store, &request).await;
    assert!(matches!(answer, Ok(Outcome::Queued { .. })), "{answer:?}");
    request
}

impl Held {
    fn now(&self) -> Option<Found> {
        self.leases.all().get(&key())?.found.clone()
    }
}

/// Waits until the holder has seen that somebody waits.
async fn has_seen_the_successor(holder: &ZookeeperStore) {
    let held = &holder.ensemble.held;
    while held.now().is_none_or(|found| found.row.next.is_none()) {
        found(&holder.ensemble, &key()).await;
    }
}

/// A store behind a proxy.
fn behind_a_proxy(place: &Place) -> (ZookeeperStore, Proxy) {
    let (hosts, node) = place
        .url
        .strip_prefix("zookeeper://")
        .and_then(|rest| rest.split_once('/'))
        .unwrap();
    let server: SocketAddr = hosts.to_socket_addrs().unwrap().next().unwrap();
    let proxy = Proxy::start(server);
    let url = format!("zookeeper://{}/{node}", proxy.address());
    (ZookeeperStore::new(&url).unwrap(), proxy)
}

/// The numbers of the requests in these bytes, but for those that only keep a session open.
fn requests(mut bytes: &[u8]) -> Vec<i32> {
    let mut requests = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap();
        let (request, rest) = rest.split_at(length);
        let number = request[4..].first_chunk().unwrap();
        requests.push(i32::from_be_bytes(*number));
        bytes = rest;
    }
    requests.retain(|request| *request != PING);
    requests
}

/// Notes all requests from now on.
fn noted(proxy: &Proxy) -> Arc<Mutex<Vec<i32>>> {
    let noted = Arc::new(Mutex::new(Vec::new()));
    let all = Arc::clone(&noted);
    proxy.refuse(Box::new(move |bytes| {
        all.lock().unwrap().extend(requests(bytes));
        false
    }));
    noted
}

#[tokio::test]
async fn a_hand_over_is_one_write_of_the_holder_and_one_read_of_the_successor() {
    let Some(place) = Place::new() else { return };
    let ((holder, to_holder), (waiter, to_waiter)) = (behind_a_proxy(&place), behind_a_proxy(&place));
    let release = granted(&holder, acquire(&key())).await;
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listens = waiter.clone();
    let listening = tokio::spawn(async move { listens.listen(&|wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    let next = queued(&waiter).await;
    has_seen_the_successor(&holder).await;

    let (holders, waiters) = (noted(&to_holder), noted(&to_waiter));
    let released = one(&holder, &release).await.unwrap();
    assert_eq!(released, Outcome::Released(Released::PassedOn));
    let woken = told.recv().await.unwrap();
    assert!(
        matches!(woken, WakeUp::PassedOn { lease_id, .. } if lease_id == next.lease_id),
        "{woken:?}"
    );
    assert_eq!(*holders.lock().unwrap(), [MULTI]);
    assert_eq!(*waiters.lock().unwrap(), [GET_DATA]);
    listening.abort();
}

#[tokio::test]
async fn a_lock_that_nobody_else_wants_costs_one_write_for_each_step() {
    let Some(place) = Place::new() else { return };
    let (store, to_store) = behind_a_proxy(&place);
    let release = granted(&store, acquire(&key())).await;
    one(&store, &release).await.unwrap();

    let sent = noted(&to_store);
    let sent = || std::mem::take(&mut *sent.lock().unwrap());
    let release = granted(&store, acquire(&key())).await;
    assert_eq!(sent(), [GET_DATA, GET_DATA, MULTI]);
    let extend = Action::Extend(Extend::new(2, Duration::from_secs(30)));
    let extended = one(&store, &Request::new(key(), release.lease_id, extend)).await;
    assert!(matches!(extended, Ok(Outcome::Extended { .. })), "{extended:?}");
    // The row may be watched by now.
    assert_eq!(
        sent()
            .into_iter()
            .filter(|sent| *sent != GET_DATA)
            .collect::<Vec<_>>(),
        [MULTI]
    );
    let row = found(&place.open().ensemble, &key()).await.row;
    assert_eq!((row.reentrant_count, row.is_held()), (2, true));
    let released = one(&store, &release).await.unwrap();
    assert_eq!(released, Outcome::Released(Released::Freed));
}

/// The lease ends between the look at the row and the write.
#[tokio::test]
async fn a_renewal_that_comes_too_late_renews_nothing() {
    let Some(place) = Place::new() else { return };
    let store = place.open();
    let mut short = acquire(&key());
    if let Action::Acquire(ask) = &mut short.action {
        ask.ttl = Duration::from_millis(50);
    }
    let release = granted(&store, short).await;
    let known = store.ensemble.held.now().expect("it was just written");
    while found(&store.ensemble, &key()).await.row.is_held() {}
    let client = store.ensemble.client().await.unwrap();
    store.ensemble.held.keep(&store.ensemble.place, &client, known);
    let extend = Action::Extend(Extend::new(1, Duration::from_secs(30)));
    let extended = one(&store, &Request::new(key(), release.lease_id, extend))
        .await
        .unwrap();
    assert_eq!(extended, Outcome::Lost);
    assert!(!found(&store.ensemble, &key()).await.row.is_held());
}

#[tokio::test]
async fn a_release_that_knows_an_old_row_does_not_lose_the_successor() {
    let Some(place) = Place::new() else { return };
    let (holder, waiter) = (place.open(), place.open());
    let release = granted(&holder, acquire(&key())).await;
    let old = found(&holder.ensemble, &key()).await;
    let next = queued(&waiter).await;
    has_seen_the_successor(&holder).await;

    let client = holder.ensemble.client().await.unwrap();
    holder.ensemble.held.keep(&holder.ensemble.place, &client, old);
    let released = one(&holder, &release).await.unwrap();
    assert_eq!(released, Outcome::Released(Released::PassedOn));
    let row = found(&holder.ensemble, &key()).await.row;
    assert_eq!((row.lease_id, row.is_held()), (next.lease_id, true));
}

/// A store that has been granted a lock. The answer to its release will be lost.
async fn whose_release_gets_no_answer(place: &Place) -> (ZookeeperStore, Proxy, Request) {
    let (store, proxy) = behind_a_proxy(place);
    let release = granted(&store, acquire(&key())).await;
    proxy.look_out(
        Trick::LoseReply,
        Box::new(|bytes| requests(bytes).contains(&MULTI)),
    );
    (store, proxy, release)
}

#[tokio::test]
async fn the_outcome_of_a_release_without_an_answer_is_open() {
    let Some(place) = Place::new() else { return };
    let (store, proxy, release) = whose_release_gets_no_answer(&place).await;
    let error = one(&store, &release).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Interrupted, "{error}");
    let again = loop {
        match one(&store, &release).await {
            Ok(again) => break again,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    };
    assert_eq!(again, Outcome::Released(Released::Before), "it was carried out");
    assert_eq!(proxy.played(), 1);
}

#[tokio::test]
async fn a_session_that_a_release_has_lost_carries_nothing_more_of_the_batch() {
    let Some(place) = Place::new() else { return };
    let (store, proxy, release) = whose_release_gets_no_answer(&place).await;
    let other = acquire(&Key::new(None, "other").unwrap());
    let answers = store.apply(&[release, other]).await;
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().map_err(StoreError::kind))
        .collect();
    let expected = [StoreErrorKind::Interrupted, StoreErrorKind::Unreachable].map(Err);
    assert_eq!(kinds, expected, "{answers:?}");
    assert_eq!(proxy.played(), 1);
}

#[tokio::test]
async fn nothing_is_kept_of_a_lease_that_is_over() {
    let Some(place) = Place::new() else { return };
    let (store, other) = (place.open(), place.open());
    let held = || !store.ensemble.held.leases.all().is_empty();

    let release = granted(&store, acquire(&key())).await;
    assert!(held());
    one(&store, &release).await.unwrap();
    assert!(!held(), "released");

    granted(&store, acquire(&key())).await;
    assert!(other.force_release(&key()).await.unwrap());
    while held() {
        found(&store.ensemble, &key()).await;
    }

    let mut short = acquire(&key());
    if let Action::Acquire(ask) = &mut short.action {
        ask.ttl = Duration::from_millis(50);
    }
    granted(&store, short).await;
    while held() {
        found(&store.ensemble, &key()).await;
    }

    granted(&store, acquire(&key())).await;
    store.close().await;
    assert!(!held(), "closed");
}
