//! Calls in the middle of which others change the lock, and leases that have grown old before they are used.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use dblock::store::{Acquire, Action, Extend, NEXT_TTL, Outcome, Released, Request, Store as _, WakeUp};
use dblock::{InspectFilter, Key};
use dblock_etcd::EtcdStore;
use dblock_etcd::etcd_client::{Client, KeyValue};
use dblock_tests::proxy::{Proxy, Traffic};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(30);

/// Long enough for others to do much between two requests of one call.
const PAUSE: Duration = Duration::from_millis(30);

/// Keys of their own in the etcd of `DBLOCK_TEST_ETCD_URL`.
struct Etcd {
    url: String,
    prefix: String,
}

impl Etcd {
    fn new() -> Option<Self> {
        let prefix = format!("meanwhile_{}", Uuid::now_v7().simple());
        dblock_tests::etcd_url().map(|url| Self { url, prefix })
    }

    fn store(&self) -> EtcdStore {
        EtcdStore::new([&self.url]).unwrap().prefix(&self.prefix)
    }

    /// A store that gets each answer late.
    async fn slow_store(&self) -> (EtcdStore, Proxy) {
        let address = self.url.strip_prefix("http://").unwrap();
        let proxy = Proxy::start(address.to_socket_addrs().unwrap().next().unwrap());
        let store = EtcdStore::new([format!("http://{}", proxy.address())])
            .unwrap()
            .prefix(&self.prefix);
        // The connection is open from here on.
        store.check_schema().await.unwrap();
        proxy.set(Traffic::Slow(PAUSE));
        (store, proxy)
    }

    async fn client(&self) -> Client {
        Box::pin(Client::connect([&self.url], None)).await.unwrap()
    }

    /// The keys that etcd has below this name.
    async fn stored(&self, name: &str) -> KeyValue {
        let name = format!("{}/{name}", self.prefix);
        let mut found = self.client().await.get(name, None).await.unwrap();
        found.take_kvs().remove(0)
    }

    /// The rest of a lease, in whole seconds.
    async fn left(&self, lease: i64) -> i64 {
        let answer = self.client().await.lease_time_to_live(lease, None).await;
        answer.unwrap().ttl()
    }

    async fn until_at_most(&self, seconds: i64, lease: i64) {
        within(async {
            while self.left(lease).await > seconds {
                sleep(Duration::from_millis(100)).await;
            }
        })
        .await;
    }
}

struct Asker {
    key: Key,
    lease_id: Uuid,
}

impl Asker {
    fn new() -> Self {
        Self {
            key: Key::new(None, "k").unwrap(),
            lease_id: Uuid::now_v7(),
        }
    }

    fn request(&self, action: Action) -> Request {
        Request::new(self.key.clone(), self.lease_id, action)
    }

    fn acquire(&self) -> Request {
        self.request(Action::Acquire(Acquire::new(self.lease_id, TTL, "test")))
    }

    fn queue(&self) -> Request {
        let mut ask = Acquire::new(self.lease_id, TTL, "test");
        ask.queue = Some(Duration::ZERO);
        ask.wanted_for = Some(TTL);
        self.request(Action::Acquire(ask))
    }

    fn extend(&self, count: u32, ttl: Duration) -> Request {
        self.request(Action::Extend(Extend::new(count, ttl)))
    }

    fn release(&self) -> Request {
        self.request(Action::Release)
    }
}

async fn one(store: &EtcdStore, request: Request) -> Outcome {
    store.apply(&[request]).await.remove(0).unwrap()
}

async fn holder(store: &EtcdStore) -> Asker {
    let asker = Asker::new();
    let granted = one(store, asker.acquire()).await;
    assert!(matches!(granted, Outcome::Granted { .. }), "{granted:?}");
    asker
}

async fn queued(store: &EtcdStore) -> Asker {
    let asker = Asker::new();
    assert_queued(&one(store, asker.queue()).await);
    asker
}

#[track_caller]
fn assert_queued(answer: &Outcome) {
    let expected = matches!(answer, Outcome::Queued { next_ttl, .. } if *next_ttl == NEXT_TTL);
    assert!(expected, "{answer:?}");
}

async fn within<T>(wait: impl Future<Output = T>) -> T {
    timeout(Duration::from_mins(1), wait).await.expect("in time")
}

/// The holder writes its row meanwhile, and somebody else takes the lock as soon as it is free.
#[tokio::test]
async fn a_forced_release_ends_the_holder_and_nobody_after_it() {
    let Some(etcd) = Etcd::new() else { return };
    let (store, (operator, _proxy)) = (etcd.store(), etcd.slow_store().await);
    let former = holder(&store).await;
    let others = async {
        let mut count = 2;
        while one(&store, former.extend(count, TTL)).await != Outcome::Lost {
            count += 1;
        }
        holder(&store).await
    };
    let (freed, next) = within(async { tokio::join!(operator.force_release(&former.key), others) }).await;
    assert!(freed.unwrap());
    let extended = one(&store, next.extend(1, TTL)).await;
    assert!(
        matches!(extended, Outcome::Extended { .. }),
        "it was ended, too: {extended:?}"
    );
}

#[tokio::test]
async fn a_lock_that_is_passed_on_again_and_again_is_never_shown_as_free() {
    let Some(etcd) = Etcd::new() else { return };
    let (store, (operator, _proxy)) = (etcd.store(), etcd.slow_store().await);
    let mut holds = holder(&store).await;
    let passes_on = async {
        loop {
            let next = queued(&store).await;
            assert_eq!(
                one(&store, holds.release()).await,
                Outcome::Released(Released::PassedOn)
            );
            holds = next;
            // For about as long as a look takes from one slot to the other.
            sleep(PAUSE).await;
        }
    };
    let looks = async {
        for look in 0..20 {
            let rows = operator.inspect(&InspectFilter::new()).await.unwrap();
            assert!(rows.len() == 1 && rows[0].is_held(), "look {look}: {rows:?}");
        }
    };
    within(async {
        tokio::select! {
            () = looks => {}
            () = passes_on => {}
        }
    })
    .await;
}

/// Its key is gone before its lease.
#[tokio::test]
async fn a_place_that_is_made_again_has_its_whole_length() {
    let Some(etcd) = Etcd::new() else { return };
    let store = etcd.store();
    holder(&store).await;
    let next = queued(&store).await;
    let place = etcd.stored("lock2/k").await;
    etcd.client().await.delete(place.key(), None).await.unwrap();
    etcd.until_at_most(1, place.lease()).await;
    assert_queued(&one(&store, next.queue()).await);
    let lease = etcd.stored("lock2/k").await.lease();
    assert!(etcd.left(lease).await >= 2, "of three seconds");
}

/// An extend of unknown outcome is carried out while the lock is released.
#[tokio::test]
async fn a_release_ends_a_key_that_moves_to_another_lease_meanwhile() {
    let Some(etcd) = Etcd::new() else { return };
    let (store, (releaser, _proxy)) = (etcd.store(), etcd.slow_store().await);
    let holder = holder(&store).await;
    let moves = async {
        let mut ttl = TTL;
        while one(&store, holder.extend(1, ttl)).await != Outcome::Lost {
            ttl += Duration::from_secs(1);
        }
    };
    let (answer, ()) = within(async { tokio::join!(one(&releaser, holder.release()), moves) }).await;
    assert_eq!(answer, Outcome::Released(Released::Freed));
    let rows = store.inspect(&InspectFilter::new()).await.unwrap();
    assert!(rows.is_empty(), "{rows:?}");
}

#[tokio::test]
async fn a_place_that_ended_while_nobody_watched_is_not_told_of() {
    let Some(etcd) = Etcd::new() else { return };
    let (store, others) = (etcd.store(), etcd.store());
    let first = holder(&others).await;
    let next = queued(&store).await;
    assert_eq!(one(&others, next.release()).await, Outcome::Withdrawn);
    one(&others, first.release()).await;
    let second = holder(&others).await;

    let (tell, mut told) = mpsc::unbounded_channel();
    let listens = tokio::spawn(async move { store.listen(&|wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(within(told.recv()).await, Some(WakeUp::Listening));
    one(&others, second.release()).await;
    assert_eq!(within(told.recv()).await, Some(WakeUp::Released(second.key)));
    listens.abort();
}

#[tokio::test]
async fn a_lease_that_is_used_again_has_its_whole_length() {
    let Some(etcd) = Etcd::new() else { return };
    let store = etcd.store();
    let first = holder(&store).await;
    let lease = etcd.stored("lock/k").await.lease();
    one(&store, first.release()).await;
    etcd.until_at_most(28, lease).await;
    holder(&store).await;
    assert_eq!(etcd.stored("lock/k").await.lease(), lease);
    assert!(etcd.left(lease).await >= 30);
}

#[tokio::test]
async fn leases_that_have_ended_while_they_rested_cost_one_refusal() {
    let Some(etcd) = Etcd::new() else { return };
    let store = etcd.store();
    let keys = ["k", "k2", "k3"];
    let holders = keys.map(|key| Asker {
        key: Key::new(None, key).unwrap(),
        ..Asker::new()
    });
    let mut ended = Vec::new();
    for (holder, key) in holders.iter().zip(keys) {
        one(&store, holder.acquire()).await;
        ended.push(etcd.stored(&format!("lock/{key}")).await.lease());
    }
    for holder in &holders {
        one(&store, holder.release()).await;
    }
    for lease in &ended {
        etcd.client().await.lease_revoke(*lease).await.unwrap();
    }
    assert_eq!(one(&store, Asker::new().acquire()).await, Outcome::Skipped);
    holder(&store).await;
    assert!(!ended.contains(&etcd.stored("lock/k").await.lease()));
}
