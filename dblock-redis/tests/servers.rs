//! Servers that refuse, restart, forget, or are not what they should be.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError, StoreErrorKind, WakeUp};
use dblock::{InspectFilter, Key, LockError, LockManager, LockOptions, Severity};
use dblock_redis::RedisStore;
use dblock_servers::{Kind, Purpose, Server, is_installed};
use dblock_tests::proxy::{Proxy, Traffic};
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;
use uuid::Uuid;

/// A server that the test may break.
async fn fresh(purpose: Purpose) -> Option<Server> {
    if !is_installed(Kind::Redis) {
        dblock_tests::left_out("a Redis server of its own", "install redis-server");
        return None;
    }
    Some(Server::fresh(Kind::Redis, purpose).await.unwrap())
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn command(server: &Server, words: &[&str]) {
    let mut connection = connect(server).await;
    let (name, arguments) = words.split_first().unwrap();
    redis::cmd(name)
        .arg(arguments)
        .exec_async(&mut connection)
        .await
        .unwrap();
}

fn store(server: &Server) -> RedisStore {
    RedisStore::new(server.url()).unwrap()
}

fn acquire(key: &str) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask))
}

async fn one(store: &RedisStore, request: Request) -> Result<Outcome, StoreError> {
    store.apply(&[request]).await.remove(0)
}

fn options() -> LockOptions {
    LockOptions::new().wait(Duration::from_secs(20))
}

async fn refused(server: &Server) -> StoreError {
    let built = LockManager::builder(store(server)).build().await;
    let Err(LockError::Store { source, .. }) = built else {
        panic!("{built:?}");
    };
    let asked = one(&store(server), acquire("k")).await.unwrap_err();
    assert_eq!(asked.to_string(), source.to_string(), "a lock is refused as well");
    source
}

#[tokio::test]
async fn an_evicting_server_is_refused() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    command(&server, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).await;
    let error = refused(&server).await;
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(error.to_string().contains("set it to noeviction"), "{error}");
    command(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    one(&store(&server), acquire("k")).await.unwrap();
}

#[tokio::test]
async fn a_replica_is_refused_and_used_once_it_is_the_primary() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = store(&server);
    one(&store, acquire("before")).await.unwrap();
    command(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let demoted = one(&store, acquire("k")).await.unwrap_err();
    for error in [demoted, refused(&server).await] {
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("the server is a replica"), "{error}");
    }
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    one(&store, acquire("k")).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = RedisStore::new(&server.url_of("default", "hush")).unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    let shown = format!("{error} {error:?} {store:?}");
    assert!(!shown.contains("hush"), "{shown}");
}

#[tokio::test]
async fn a_user_needs_what_the_readme_lists() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let readme = include_str!("../README.md");
    let line = readme
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .unwrap();
    let words: Vec<_> = line.split(' ').map(|word| word.replace("…", "hush")).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    command(&server, &words).await;
    let url = server.url_of("locks", "hush");
    let open = || RedisStore::new(&url).unwrap();
    let (one, other) = (
        LockManager::builder(open()).build().await.unwrap(),
        LockManager::builder(open()).build().await.unwrap(),
    );
    let guard = one.acquire("k", options()).await.unwrap();
    let next = tokio::spawn(async move { other.acquire("k", options()).await.unwrap() });
    assert!(one.inspect(dblock::InspectFilter::new()).await.unwrap().len() == 1);
    assert!(one.revoke("k").await.unwrap());
    guard.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
    one.diagnose().await.unwrap();

    let elsewhere = RedisStore::new(&url).unwrap().prefix("other");
    let error = self::one(&elsewhere, acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn what_is_no_row_is_left_alone_and_fails_its_own_key_only() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    command(&server, &["SET", "dblock:lock:text", "not ours"]).await;
    command(&server, &["LPUSH", "dblock:lock:list", "not ours"]).await;
    let store = store(&server);
    let answers = store.apply(&["text", "good", "list"].map(acquire)).await;
    for place in [0, 2] {
        let error = answers[place].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    }
    assert!(matches!(answers[1], Ok(Outcome::Granted { .. })), "{answers:?}");
    let key = Key::new(None, "text").unwrap();
    let error = store.force_release(&key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    let mut connection = connect(&server).await;
    let mut get = redis::cmd("GET");
    let kept: String = get
        .arg("dblock:lock:text")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(kept, "not ours");
}

#[tokio::test]
async fn a_full_server_says_so_and_nothing_is_granted() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = store(&server);
    one(&store, acquire("before")).await.unwrap();
    command(&server, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let answers = store.apply(&["a", "b"].map(acquire)).await;
    for answer in answers {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("maxmemory"), "{error}");
    }
    command(&server, &["CONFIG", "SET", "maxmemory", "0"]).await;
    one(&store, acquire("a")).await.unwrap();
}

/// The successor would enter on a wake-up for a row that still names the holder.
#[tokio::test]
async fn a_pass_on_that_is_refused_is_not_told() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = store(&server);
    let (mut holder, mut successor) = (acquire("a"), acquire("a"));
    one(&store, holder.clone()).await.unwrap();
    let Action::Acquire(ask) = &mut successor.action else {
        unreachable!()
    };
    (ask.wanted_for, ask.queue) = (Some(Duration::from_mins(1)), Some(Duration::ZERO));
    let queued = one(&store, successor).await.unwrap();
    assert!(matches!(queued, Outcome::Queued { .. }), "{queued:?}");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = RedisStore::new(server.url()).unwrap();
    let listener =
        tokio::spawn(async move { listening.listen(&move |wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));

    holder.action = Action::Release;
    command(&server, &["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    one(&store, holder.clone()).await.unwrap_err();
    command(&server, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    let held = store.inspect(&InspectFilter::new()).await.unwrap().swap_remove(0);
    assert_eq!(held.lease_id, holder.lease_id);
    let released = one(&store, holder).await.unwrap();
    assert!(
        matches!(released, Outcome::Released { freed: true, .. }),
        "{released:?}"
    );
    let WakeUp::PassedOn { fence_token, .. } = told.recv().await.unwrap() else {
        panic!("the pass-on is told")
    };
    let passed_on = store.inspect(&InspectFilter::new()).await.unwrap().swap_remove(0);
    assert_eq!(fence_token, passed_on.fence_token, "the refused one was told");
    listener.abort();
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = store(&server);
    for key in ["a", "b"] {
        one(&store, acquire(key)).await.unwrap();
        command(&server, &["SCRIPT", "FLUSH"]).await;
    }
}

#[tokio::test]
async fn a_restart_keeps_the_locks_of_a_durable_server() {
    let Some(mut server) = fresh(Purpose::Torture).await else {
        return;
    };
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    let guard = locks.acquire("k", options()).await.unwrap();
    let token = guard.fence_token();
    server.kill();
    server.restart().await.unwrap();
    let other = LockManager::builder(store(&server)).build().await.unwrap();
    assert!(
        other
            .try_acquire("k", LockOptions::new())
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(other.get("k").await.unwrap().unwrap().fence_token, token);
    // The first manager finds the server again by itself.
    guard.release().await.unwrap();
    let next = other.acquire("k", options()).await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_waits_for_the_disk_where_the_server_can_tell() {
    let Some(server) = fresh(Purpose::Torture).await else {
        return;
    };
    let synced = store(&server).synced_by(0, Duration::from_secs(1)).unwrap();
    match one(&synced, acquire("k")).await {
        Ok(granted) => assert!(matches!(granted, Outcome::Granted { .. }), "{granted:?}"),
        // Redis before 7.2 cannot.
        Err(refused) => {
            assert_eq!(refused.kind(), StoreErrorKind::Unsupported, "{refused}");
            assert!(refused.to_string().contains("7.2 or later"), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_closed_connection_is_opened_again() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    for key in ["a", "b", "c"] {
        let guard = locks.acquire(key, options()).await.unwrap();
        command(&server, &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await;
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_broke_or_hung_is_not_used_again() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let (_, address) = server.url().rsplit_once('@').unwrap();
    let proxy = Proxy::start(address.parse().unwrap());
    let through = server.url().replace(address, &proxy.address().to_string());
    let store = RedisStore::new(&through).unwrap();
    one(&store, acquire("before")).await.unwrap();

    proxy.set(Traffic::Refused);
    let broken = one(&store, acquire("a")).await.unwrap_err();
    assert!(broken.is_retryable(), "{broken}");
    proxy.set(Traffic::Flows);
    one(&store, acquire("a")).await.unwrap();

    // What is sent now is never answered, on this connection.
    proxy.set(Traffic::BlackHole);
    let hung = timeout(Duration::from_millis(300), one(&store, acquire("b"))).await;
    assert!(hung.is_err(), "{hung:?}");
    proxy.set(Traffic::Flows);
    let next = timeout(Duration::from_secs(10), one(&store, acquire("c"))).await;
    next.expect("on a new connection").unwrap();
}

#[tokio::test]
async fn the_databases_of_a_server_are_apart() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let other = RedisStore::new(&format!("{}/1", server.url())).unwrap();
    for store in [store(&server), other] {
        let outcome = one(&store, acquire("k")).await.unwrap();
        assert!(matches!(outcome, Outcome::Granted { .. }), "{outcome:?}");
    }
}

/// Writes under a lock by a script of the user's. Whether it was let do so.
async fn write(redis: &mut MultiplexedConnection, key: &str, token: i64) -> bool {
    let script = redis::Script::new(&format!(
        "{}
         if not dblock_holds(KEYS[1], ARGV[1]) then return 0 end
         redis.call('INCR', KEYS[2])
         return 1",
        dblock_redis::VERIFY
    ));
    let mut write = script.key(format!("dblock:lock:{key}"));
    let written = write.key("written").arg(token).invoke_async(redis);
    written.await.unwrap()
}

#[tokio::test]
async fn a_script_of_the_users_can_check_the_token() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let mut redis = connect(&server).await;
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    assert!(!write(&mut redis, "k", 1).await, "nobody has ever held it");
    let guard = locks.acquire("k", options()).await.unwrap();
    let token = guard.fence_token();
    assert!(write(&mut redis, "k", token).await);
    assert!(!write(&mut redis, "k", token - 1).await);
    assert!(locks.force_release("k").await.unwrap());
    assert!(!write(&mut redis, "k", token).await, "it is free");
    let other = LockManager::builder(store(&server)).build().await.unwrap();
    let next = other.acquire("k", options()).await.unwrap();
    assert!(!write(&mut redis, "k", token).await, "another one holds it");
    next.release().await.unwrap();
    drop(guard);
}

#[tokio::test]
async fn a_script_knows_each_owner_after_a_local_hand_over() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let redis = connect(&server).await;
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    let mut owners = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (locks, mut redis) = (locks.clone(), redis.clone());
        owners.spawn(async move {
            let guard = locks.acquire("k", options()).await.unwrap();
            // Only some ask, so that the others hand the lock over.
            if number % 4 == 3 {
                guard.pin().await.unwrap();
                assert!(write(&mut redis, "k", guard.fence_token()).await);
            }
            guard.release().await.unwrap();
        });
    }
    owners.join_all().await;
}

#[tokio::test]
async fn a_diagnosis_says_what_a_crash_may_forget() {
    for (purpose, severity) in [
        (Purpose::Tests, Severity::Note),
        (Purpose::Torture, Severity::Fine),
    ] {
        let Some(server) = fresh(purpose).await else {
            return;
        };
        let findings = store(&server).diagnose().await.unwrap();
        let durability = findings
            .iter()
            .find(|finding| finding.check == "durability")
            .unwrap();
        assert_eq!(durability.severity, severity, "{durability:?}");
    }
}
