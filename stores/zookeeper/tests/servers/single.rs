//! One server: what it refuses, restarts, and a transaction of the user's.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Action, Outcome, Request, Store, StoreErrorKind, WakeUp};
use dblock::{Key, LockError, LockManager, Severity};
use dblock_core::store::events::{Event, counted};
use dblock_servers::slow_disk::SlowDisk;
use dblock_servers::zookeeper::start_on_slow_disk;
use dblock_servers::{Kind, Purpose, Server};
use dblock_sharded::ShardedStore;
use dblock_tests::backend::renewed;
use dblock_tests::proxy::{Proxy, Traffic};
use dblock_zookeeper::ZookeeperStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, CreateOptions, MultiWriteError, Permission};

use super::{acquire, again, installed, one, options, queue};

const OPEN: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());

/// A server that the test may break.
async fn fresh() -> Option<Server> {
    if !installed() {
        return None;
    }
    let server = Server::fresh(Kind::ZooKeeper, Purpose::Tests).await.unwrap();
    // Its first session takes long while many servers start side by side.
    client(&server).await;
    Some(server)
}

fn store(server: &Server) -> ZookeeperStore {
    ZookeeperStore::new(server.url()).unwrap()
}

/// A client of the test's own.
async fn client(server: &Server) -> Client {
    let (_, hosts) = server.url().split_once("://").unwrap();
    let opened = async {
        loop {
            if let Ok(client) = Client::connect(hosts).await {
                return client;
            }
        }
    };
    timeout(Duration::from_mins(1), opened)
        .await
        .expect("it takes sessions")
}

#[tokio::test]
async fn a_restart_keeps_the_locks() {
    let Some(mut server) = fresh().await else { return };
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let token = guard.fence_token();
    server.kill();
    server.restart().await.unwrap();
    let store = store(&server);
    // A server that has just started may be slow to answer.
    again(&store, acquire("other")).await;
    let other = LockManager::builder(store).build().await.unwrap();
    let busy = other.lock("k").try_acquire().await.unwrap();
    assert!(busy.is_none());
    assert_eq!(other.admin().get("k").await.unwrap().unwrap().fence_token, token);
    // The first manager finds the server again by itself.
    guard.release().await.unwrap();
    let next = other.lock("k").options(&options()).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_away_is_unreachable_and_found_again() {
    let Some(mut server) = fresh().await else { return };
    let store = store(&server);
    one(&store, acquire("before")).await.unwrap();
    server.kill();
    for _ in 0..2 {
        let error = one(&store, acquire("k")).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    }
    server.restart().await.unwrap();
    let outcome = again(&store, acquire("k")).await;
    assert!(matches!(outcome, Outcome::Granted { .. }), "{outcome:?}");
}

/// Beside a release that has read the clock already, the successor would expect more time than it gets.
#[tokio::test]
async fn a_place_that_is_not_written_anew_is_told_as_busy() {
    let Some(server) = fresh().await else { return };
    let store = store(&server);
    one(&store, acquire("k")).await.unwrap();
    let next = queue("k");
    let queued = one(&store, next.clone()).await.unwrap();
    assert!(matches!(queued, Outcome::Queued { .. }), "{queued:?}");
    let again = one(&store, next).await.unwrap();
    assert!(matches!(again, Outcome::Busy(_)), "{again:?}");
}

#[tokio::test]
async fn who_listens_is_told_that_the_server_is_gone() {
    let Some(mut server) = fresh().await else { return };
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = tokio::spawn({
        let store = store(&server);
        async move { store.listen(&|wake_up| drop(tell.send(wake_up))).await }
    });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    server.kill();
    let ended = timeout(Duration::from_secs(10), listening).await;
    let error = ended.expect("it does not wait for ever").unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Interrupted, "{error}");
}

#[tokio::test]
async fn a_connection_that_broke_or_hung_is_not_used_again() {
    let Some(server) = fresh().await else { return };
    let (_, address) = server.url().split_once("://").unwrap();
    let proxy = Proxy::start(address.parse().unwrap());
    let store = ZookeeperStore::new(&format!("zookeeper://{}", proxy.address())).unwrap();
    one(&store, acquire("before")).await.unwrap();

    let events = counted("zookeeper", Event::SessionLost);
    proxy.set(Traffic::Refused);
    let broken = one(&store, acquire("a")).await.unwrap_err();
    assert!(broken.is_retryable(), "{broken}");
    proxy.set(Traffic::Flows);
    again(&store, acquire("a")).await;

    // From here on nothing is answered on this connection.
    proxy.set(Traffic::BlackHole);
    let hung = timeout(Duration::from_secs(10), one(&store, acquire("b"))).await;
    let hung = hung.expect("a silent server is noticed").unwrap_err();
    assert!(hung.is_retryable(), "{hung}");
    proxy.set(Traffic::Flows);
    let next = timeout(Duration::from_secs(10), again(&store, acquire("c"))).await;
    next.expect("on a new connection");
    assert!(counted("zookeeper", Event::SessionLost) > events + 1);
}

/// As when two managers share the store, and the one that opened the session is gone.
#[tokio::test]
async fn a_session_that_ended_with_its_runtime_is_not_used_again() {
    let Some(server) = fresh().await else { return };
    let store = store(&server);
    let elsewhere = store.clone();
    let first = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(one(&elsewhere, acquire("k")))
    });
    first.await.unwrap().unwrap();
    let next = timeout(Duration::from_secs(10), again(&store, acquire("next"))).await;
    next.expect("in a session of this runtime");
}

#[tokio::test]
async fn what_is_no_row_is_left_alone_and_fails_its_own_key_only() {
    let Some(server) = fresh().await else { return };
    let store = store(&server);
    one(&store, acquire("bad")).await.unwrap();
    let client = client(&server).await;
    let mut folders = client.list_children("/dblock/locks").await.unwrap();
    let path = format!("/dblock/locks/{}/bad", folders.remove(0));
    client.set_data(&path, b"not ours", None).await.unwrap();

    let answers = store.apply(&["bad", "good"].map(acquire)).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert!(matches!(answers[1], Ok(Outcome::Granted { .. })), "{answers:?}");
    let key = Key::new(None, "bad").unwrap();
    let error = store.force_release(&key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert_eq!(client.get_data(&path).await.unwrap().0, b"not ours");
}

#[tokio::test]
async fn nodes_of_a_user_are_for_that_user_alone() {
    let Some(server) = fresh().await else { return };
    let (_, host) = server.url().split_once("://").unwrap();
    let open = |user: &str| ZookeeperStore::new(&format!("zookeeper://{user}{host}/owned")).unwrap();
    one(&open("us:hush@"), acquire("k")).await.unwrap();
    for user in ["us:wrong@", ""] {
        let stranger = open(user);
        let built = LockManager::builder(stranger.clone()).build().await;
        let Err(LockError::Store { source, .. }) = built else {
            panic!("{built:?}");
        };
        assert_eq!(source.kind(), StoreErrorKind::Refused, "{source}");
        let shown = format!("{source} {source:?} {stranger:?}");
        assert!(!shown.contains("hush") && !shown.contains("wrong"), "{shown}");
    }
    let outcome = one(&open("us:hush@"), acquire("k")).await.unwrap();
    assert!(matches!(outcome, Outcome::Busy(_)), "{outcome:?}");
}

#[tokio::test]
async fn nodes_that_were_deleted_are_made_again() {
    let Some(server) = fresh().await else { return };
    let (store, client) = (store(&server), client(&server).await);
    one(&store, acquire("k")).await.unwrap();
    client.delete("/dblock/clock", None).await.unwrap();
    // An ask for a lock that somebody holds looks at the clock.
    let error = one(&store, acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    let busy = one(&store, acquire("k")).await.unwrap();
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
}

/// How many connections the server has, that of this question included.
async fn connections(server: &Server) -> usize {
    let (_, address) = server.url().split_once("://").unwrap();
    let mut connection = TcpStream::connect(address).await.unwrap();
    connection.write_all(b"srvr").await.unwrap();
    let mut said = String::new();
    connection.read_to_string(&mut said).await.unwrap();
    let count = said.lines().find_map(|line| line.strip_prefix("Connections: "));
    count.unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_look_at_the_token_opens_no_session() {
    let Some(server) = fresh().await else { return };
    let store = store(&server);
    let refused = store.fence("k", 1).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unsupported, "{refused}");
    let locks = LockManager::builder(store.clone()).build().await.unwrap();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let before = connections(&server).await;
    let fence = store.fence(guard.full_key(), guard.fence_token()).await;
    assert!(fence.unwrap().is_some());
    assert_eq!(connections(&server).await, before);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_opened_and_locks_taken_and_renewed_while_commits_take_more_than_a_second() {
    if !installed() || !SlowDisk::can_be_made() {
        return;
    }
    let (server, disk) = start_on_slow_disk(Duration::from_millis(1_050)).await.unwrap();
    client(&server).await;
    one(&store(&server), acquire("another")).await.unwrap();
    disk.slow_down().unwrap();
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    // A renewal may take two commits, and waits for other servers on this machine's disk.
    let options = options().ttl(Duration::from_secs(20));
    let guard = locks.lock("k").options(&options).acquire().await.unwrap();
    renewed(&guard).await;
    disk.speed_up().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_key_does_not_wait_until_its_batch_has_read_the_clock() {
    const COMMIT: Duration = Duration::from_secs(1);
    if !installed() || !SlowDisk::can_be_made() {
        return;
    }
    let (server, disk) = start_on_slow_disk(COMMIT).await.unwrap();
    let (client, store) = (client(&server).await, store(&server));
    again(&store, acquire("busy")).await;
    let free = acquire("free");
    again(&store, free.clone()).await;
    let release = Request::new(free.key, free.lease_id, Action::Release);
    again(&store, release).await;

    disk.slow_down().unwrap();
    let answers = store.apply(&["busy", "free"].map(acquire)).await;
    disk.speed_up().unwrap();
    assert!(matches!(answers[0], Ok(Outcome::Busy(_))), "{answers:?}");
    assert!(matches!(answers[1], Ok(Outcome::Granted { .. })), "{answers:?}");
    let clock = client.check_stat("/dblock/clock").await.unwrap().unwrap();
    let mut granted = None;
    for folder in client.list_children("/dblock/locks").await.unwrap() {
        let row = client.check_stat(&format!("/dblock/locks/{folder}/free")).await;
        granted = granted.or(row.unwrap());
    }
    let apart = clock.mtime.abs_diff(granted.unwrap().mtime);
    assert!(u128::from(apart) < COMMIT.as_millis(), "{apart} ms");
}

#[tokio::test]
async fn a_session_that_left_a_dropped_call_without_an_answer_is_not_used_again() {
    let Some(server) = fresh().await else { return };
    let (_, address) = server.url().split_once("://").unwrap();
    let proxy = Proxy::start(address.parse().unwrap());
    let store = ZookeeperStore::new(&format!("zookeeper://{}", proxy.address())).unwrap();
    one(&store, acquire("before")).await.unwrap();
    proxy.set(Traffic::BlackHole);
    let hung = timeout(Duration::from_millis(300), one(&store, acquire("a"))).await;
    assert!(hung.is_err(), "{hung:?}");
    proxy.set(Traffic::Flows);
    one(&store, acquire("b")).await.expect("in a new session");
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_move_to_another_shard_while_they_are_used() {
    let Some(server) = fresh().await else { return };
    let shards = |names: &[&str]| {
        let shards = names.iter().map(|name| {
            let store = ZookeeperStore::new(&format!("{}/{name}", server.url())).unwrap();
            (*name, Arc::new(store) as Arc<dyn Store>)
        });
        ShardedStore::new(shards).unwrap()
    };
    let moving = shards(&["one"]).moving_to(shards(&["one", "two"])).unwrap();
    let mut managers = Vec::new();
    for store in [shards(&["one"]), moving, shards(&["one", "two"])] {
        managers.push(LockManager::builder(store).build().await.unwrap());
    }
    for key in ["a", "b", "c", "d", "e", "f"] {
        let mut last = 0;
        for locks in &managers {
            let guard = locks.lock(key).options(&options()).acquire().await.unwrap();
            assert!(guard.fence_token() > last, "{key}");
            last = guard.fence_token();
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn nodes_have_the_access_list_of_the_users_choice() {
    let Some(server) = fresh().await else { return };
    let (_, host) = server.url().split_once("://").unwrap();
    let open = |user: &str| ZookeeperStore::new(&format!("zookeeper://{user}{host}/shared")).unwrap();
    let creator = Acl::new(Permission::ALL, AuthId::authed());
    let readers = Acl::new(Permission::READ, AuthId::anyone());
    let owner = open("us:hush@").acls([creator, readers]);
    one(&owner, acquire("k")).await.unwrap();
    let client = client(&server).await;
    let folders = client.list_children("/shared/locks").await.unwrap();
    let row = format!("/shared/locks/{}/k", folders[0]);
    client.get_data(&row).await.expect("everybody may read it");
    let refused = client.set_data(&row, b"", None).await.unwrap_err();
    assert_eq!(refused, zookeeper_client::Error::NoAuth);
    let busy = one(&open("us:hush@"), acquire("k")).await.unwrap();
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
}

/// Writes to a node of the user's in a transaction that checks the lock.
async fn write(client: &Client, fence: &dblock_zookeeper::Fence) -> Result<(), MultiWriteError> {
    let mut write = client.new_multi_writer();
    write.add_check_version(&fence.path, fence.version).unwrap();
    write.add_set_data("/work", b"done", None).unwrap();
    write.commit().await.map(drop)
}

#[tokio::test]
async fn a_transaction_of_the_users_can_check_the_token() {
    let Some(server) = fresh().await else { return };
    let (store, client) = (store(&server), client(&server).await);
    client.create("/work", b"", &OPEN).await.unwrap();
    let locks = LockManager::builder(store.clone()).build().await.unwrap();
    assert_eq!(
        store.fence("k", 1).await.unwrap(),
        None,
        "nobody has ever held it"
    );

    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let token = guard.fence_token();
    guard.pin().await.unwrap();
    let fence = store.fence(guard.key(), token).await.unwrap().unwrap();
    write(&client, &fence).await.unwrap();
    assert_eq!(store.fence("k", token - 1).await.unwrap(), None);

    assert!(locks.admin().force_release("k").await.unwrap());
    write(&client, &fence).await.expect_err("the lock was freed");
    assert_eq!(store.fence("k", token).await.unwrap(), None, "it is free");
    let other = LockManager::builder(store.clone()).build().await.unwrap();
    let next = other.lock("k").options(&options()).acquire().await.unwrap();
    write(&client, &fence)
        .await
        .expect_err("another one has the lock");
    assert_eq!(store.fence("k", token).await.unwrap(), None);
    next.release().await.unwrap();
    drop(guard);
}

#[tokio::test]
async fn a_diagnosis_says_that_one_server_is_not_an_ensemble() {
    let Some(server) = fresh().await else { return };
    let findings = store(&server).diagnose().await.unwrap();
    let servers = findings
        .iter()
        .find(|finding| finding.check == "servers")
        .unwrap();
    assert_eq!(servers.severity, Severity::Note, "{servers:?}");
    let clock = findings.iter().find(|finding| finding.check == "clock").unwrap();
    assert_eq!(clock.severity, Severity::Fine, "{clock:?}");
}
