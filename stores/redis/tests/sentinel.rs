//! A primary that Sentinels watch: fail-over, what it may lose, and what waiting for replicas is good for.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;
mod log;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError, StoreErrorKind};
use dblock::{Key, LockError, LockManager, LockOptions};
use dblock_core::store::events::{Event, counted};
use dblock_redis::RedisStore;
use dblock_servers::{Kind, Purpose, RedisSentinel, Server, is_installed};
use dblock_tests::proxy::{Proxy, Traffic};
use tokio::time::timeout;
use uuid::Uuid;

use self::log::Log;

async fn fresh(replicas: usize) -> Option<RedisSentinel> {
    Log::install();
    if !is_installed(Kind::Redis) {
        dblock_tests::left_out("Redis servers of its own", "install redis-server");
        return None;
    }
    Some(RedisSentinel::fresh(replicas, Purpose::Tests).await.unwrap())
}

fn store(servers: &RedisSentinel) -> RedisStore {
    RedisStore::new(servers.url()).unwrap()
}

fn options() -> LockOptions {
    LockOptions::new()
        .ttl(Duration::from_secs(2))
        .wait(Duration::from_secs(30))
}

async fn one(store: &RedisStore, key: &str) -> Result<Outcome, StoreError> {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    let request = Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask));
    store.apply(&[request]).await.remove(0)
}

async fn command<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> T {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let mut command = redis::cmd(words[0]);
    command
        .arg(&words[1..])
        .query_async(&mut connection)
        .await
        .unwrap()
}

#[tokio::test]
async fn a_killed_primary_is_followed_and_replicated_tokens_grow() {
    let Some(mut servers) = fresh(2).await else {
        return;
    };
    let store = store(&servers)
        .acknowledged_by(1, Duration::from_secs(1))
        .unwrap();
    // The engine has threads of its own, so this store is asked directly.
    one(&store, "first").await.unwrap();
    let locks = LockManager::builder(
        self::store(&servers)
            .acknowledged_by(1, Duration::from_secs(1))
            .unwrap(),
    )
    .build()
    .await
    .unwrap();
    let moves = counted("redis", Event::Moved);
    let mut tokens = Vec::new();
    for round in 0..20 {
        if round == 5 {
            servers.servers[0].kill();
        }
        let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
        tokens.push(guard.fence_token());
        // Its end may have been lost with the primary.
        let _ = guard.release().await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    let taken = one(&store, "first").await.unwrap();
    assert!(
        matches!(taken, Outcome::Busy(_)),
        "the grant was replicated: {taken:?}"
    );
    let lines = Log::of_this_thread();
    assert_eq!(lines.len(), 2, "one line for each change: {lines:?}");
    assert!(lines[1].contains("no longer"), "{lines:?}");
    assert!(counted("redis", Event::Moved) > moves);
}

#[tokio::test]
async fn a_primary_that_has_been_demoted_is_left() {
    let Some(servers) = fresh(1).await else {
        return;
    };
    let store = store(&servers);
    one(&store, "before").await.unwrap();
    // The Sentinels still name it: a fail-over that is under way, from the side of a client.
    let _: String = command(&servers.servers[0], &["REPLICAOF", "127.0.0.1", "1"]).await;
    let refused = one(&store, "k").await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unreachable, "{refused}");
    assert!(
        refused.to_string().contains("the server is a replica"),
        "{refused}"
    );
    // The Sentinels mend it, or name the other; whichever it is, callers that wait get their lock.
    let locks = LockManager::builder(self::store(&servers)).build_lazy().unwrap();
    let granted = timeout(
        Duration::from_mins(1),
        locks
            .lock("k")
            .options(&options())
            .wait(Duration::from_secs(50))
            .acquire(),
    );
    granted.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_name_that_nobody_watches_and_a_wrong_password_are_refused() {
    let Some(servers) = fresh(0).await else {
        return;
    };
    let unknown = servers.url().replace("/main?", "/other?");
    let error = RedisStore::new(&unknown)
        .unwrap()
        .check_schema()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("\"other\""), "{error}");

    let (url, _) = servers.url().split_once('?').unwrap();
    let wrong = format!("{url}?sentinel_password=hush");
    for url in [url, &wrong] {
        let error = RedisStore::new(url).unwrap().check_schema().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
}

#[tokio::test]
async fn what_too_few_replicas_have_is_not_granted() {
    let Some(servers) = fresh(1).await else {
        return;
    };
    let within = Duration::from_millis(200);
    let waiting = store(&servers).acknowledged_by(1, within).unwrap();
    let mut keys = (0..20).map(|n| format!("k{n}"));
    // The replica may be late.
    let granted = loop {
        let key = keys.next().expect("one is granted");
        if let Ok(Outcome::Granted { .. }) = one(&waiting, &key).await {
            break key;
        }
    };

    // It stays connected, and takes nothing more.
    servers.servers[1].pause().unwrap();
    let open = one(&waiting, "next").await.unwrap_err();
    assert!(open.is_outcome_unknown(), "{open}");
    assert!(open.to_string().contains("0 of 1 replicas"), "{open}");
    let busy = one(&waiting, &granted).await.unwrap();
    assert!(matches!(busy, Outcome::Busy(_)), "nothing was written: {busy:?}");

    let locks = LockManager::builder(waiting).build_lazy().unwrap();
    let wait = LockOptions::new().wait(Duration::from_millis(600));
    let refused = locks.lock("other").options(&wait).acquire().await.unwrap_err();
    assert!(
        matches!(refused, LockError::Store { .. } | LockError::Timeout { .. }),
        "{refused:?}"
    );

    servers.servers[1].wake().unwrap();
    let guard = locks.lock("other").options(&options()).acquire().await.unwrap();
    guard.release().await.unwrap();
}

/// The parts of a URL: user and password, the Sentinels, and what follows.
fn parts(url: &str) -> (&str, Vec<&str>, &str) {
    let (user, rest) = url.split_once('@').unwrap();
    let (sentinels, name) = rest.split_once('/').unwrap();
    (user, sentinels.split(',').collect(), name)
}

/// The answers of a Sentinel: the primary, and the epoch where it tells one.
type Known<'a> = (&'a str, Option<u64>);

/// A Sentinel that knows this.
async fn sentinel(primary: &str, epoch: Option<u64>) -> String {
    sentinel_that_learns((primary, epoch), (primary, epoch)).await
}

/// A Sentinel that learns something else when it has answered the first question of a client.
async fn sentinel_that_learns(before: Known<'_>, after: Known<'_>) -> String {
    let [before, after] = [before, after].map(|(primary, epoch)| {
        let (host, port) = primary.split_once(':').unwrap();
        let named = format!("*2\r\n{}{}", fake::text(host), fake::text(port));
        let epoch = epoch.map_or("-NOPERM no\r\n".to_owned(), |epoch| {
            let (field, value) = (fake::text("config-epoch"), fake::text(&epoch.to_string()));
            format!("*2\r\n{field}{value}")
        });
        (named, epoch)
    });
    let (listener, address) = fake::bind().await;
    let asked = Arc::new(AtomicBool::new(false));
    fake::serve(listener, move |words| {
        if words[0] != "SENTINEL" {
            return None;
        }
        let known = if asked.swap(true, Ordering::Relaxed) {
            &after
        } else {
            &before
        };
        match &*words[1] {
            "MASTER" => Some(known.1.clone()),
            "GET-MASTER-ADDR-BY-NAME" => Some(known.0.clone()),
            _ => None,
        }
    });
    address
}

#[tokio::test]
async fn a_sentinel_that_knows_yesterdays_primary_is_overruled() {
    let Some(servers) = fresh(1).await else {
        return;
    };
    let (user, sentinels, name) = parts(servers.url());
    let (_, replica) = servers.servers[1].url().rsplit_once('@').unwrap();
    for yesterdays in [replica, "127.0.0.1:1"] {
        let stale = sentinel(yesterdays, None).await;
        for others in [sentinels.join(","), sentinels[0].to_owned()] {
            let url = format!("{user}@{stale},{others}/{name}");
            let key = format!("{yesterdays} {others}");
            let granted = one(&RedisStore::new(&url).unwrap(), &key).await;
            assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
        }
    }
}

/// Two servers that take writes, although a fail-over has put the newer one in the other's place.
struct TwoPrimaries {
    former: Server,
    newest: Server,
    /// The way to the newer one. The other one answers first.
    proxy: Proxy,
}

impl TwoPrimaries {
    async fn new() -> Option<Self> {
        if !is_installed(Kind::Redis) {
            dblock_tests::left_out("Redis servers of its own", "install redis-server");
            return None;
        }
        let former = Server::fresh(Kind::Redis, Purpose::Tests).await.unwrap();
        let newest = Server::fresh(Kind::Redis, Purpose::Tests).await.unwrap();
        for server in [&former, &newest] {
            let _: String = command(server, &["CONFIG", "SET", "requirepass", ""]).await;
        }
        let proxy = Proxy::start(address(&newest).parse().unwrap());
        proxy.set(Traffic::Slow(Duration::from_millis(50)));
        Some(Self {
            former,
            newest,
            proxy,
        })
    }

    fn former(&self) -> String {
        address(&self.former)
    }

    fn newest(&self) -> String {
        self.proxy.address().to_string()
    }

    async fn is_granted_by_the_newest(&self, key: &str, sentinels: [&String; 2]) {
        let url = format!("redis+sentinel://{},{}/main", sentinels[0], sentinels[1]);
        let granted = one(&RedisStore::new(&url).unwrap(), key).await.unwrap();
        assert!(matches!(granted, Outcome::Granted { .. }), "{granted:?}");
        let there = RedisStore::new(&format!("redis://{}", address(&self.newest))).unwrap();
        let there = one(&there, key).await.unwrap();
        assert!(
            matches!(there, Outcome::Busy(_)),
            "granted by the former one: {there:?}"
        );
    }
}

fn address(server: &Server) -> String {
    server.url().rsplit_once('@').unwrap().1.to_owned()
}

/// Each is named by half of the Sentinels.
#[tokio::test]
async fn of_two_primaries_that_of_the_last_fail_over_is_taken() {
    let Some(two) = TwoPrimaries::new().await else {
        return;
    };
    let stale = sentinel(&two.former(), Some(6)).await;
    let knows = sentinel(&two.newest(), Some(7)).await;
    two.is_granted_by_the_newest("a", [&stale, &knows]).await;
    two.is_granted_by_the_newest("b", [&knows, &stale]).await;
}

/// Its new epoch is not that of the address it knew before.
#[tokio::test]
async fn a_sentinel_that_learns_of_a_fail_over_between_two_questions_does_not_prove_the_former_primary() {
    let Some(two) = TwoPrimaries::new().await else {
        return;
    };
    let (former, newest) = (two.former(), two.newest());
    for key in ["a", "b"] {
        let learns = sentinel_that_learns((&former, Some(6)), (&newest, Some(7))).await;
        let knows = sentinel(&newest, Some(7)).await;
        let [first, second] = if key == "a" {
            [&learns, &knows]
        } else {
            [&knows, &learns]
        };
        two.is_granted_by_the_newest(key, [first, second]).await;
    }
}

#[tokio::test]
async fn sentinels_that_hang_cost_no_lease() {
    let Some(servers) = fresh(0).await else {
        return;
    };
    let (user, sentinels, name) = parts(servers.url());
    let proxies: Vec<_> = sentinels
        .iter()
        .map(|address| Proxy::start(address.parse().unwrap()))
        .collect();
    let through: Vec<_> = proxies.iter().map(|proxy| proxy.address().to_string()).collect();
    let url = format!("{user}@{}/{name}", through.join(","));
    let locks = LockManager::builder(RedisStore::new(&url).unwrap())
        .build()
        .await
        .unwrap();
    let ttl = Duration::from_secs(5);
    let guard = locks
        .lock("k")
        .options(&options())
        .ttl(ttl)
        .acquire()
        .await
        .unwrap();
    for proxy in &proxies {
        proxy.set(Traffic::BlackHole);
    }
    let lost = timeout(2 * ttl, guard.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn clients_of_the_users_connect_to_the_sentinels_and_to_the_primary() {
    let Some(servers) = fresh(0).await else {
        return;
    };
    let (user, sentinels, name) = parts(servers.url());
    let password = user.rsplit_once(':').unwrap().1.to_owned();
    let (name, _) = name.split_once('?').unwrap();
    let store = RedisStore::new(&format!("redis+sentinel://{}/{name}", sentinels.join(","))).unwrap();
    let refused = one(&store, "k").await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    let store = store.connect_with(move |server| {
        let login = server.redis_settings().clone().set_password(&password);
        std::future::ready(redis::Client::open(server.set_redis_settings(login)))
    });
    let granted = one(&store, "k").await;
    assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
}
