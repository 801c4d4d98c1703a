//! Members that are killed, stopped and woken, a cluster without a quorum, and a condition in a user's
//! transaction.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{
    Acquire, Action, Extend, Outcome, Released, Request, Store as _, StoreError, StoreErrorKind,
};
use dblock::{InspectFilter, Key, LockError, LockManager, LockOptions, Severity};
use dblock_core::store::events::{Event, counted};
use dblock_etcd::EtcdStore;
use dblock_etcd::etcd_client::{Client, Txn, TxnOp};
use dblock_servers::{Ensemble, Kind, Purpose, Server, is_installed};
use dblock_tests::proxy::{Proxy, Traffic};
use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

const TTL: Duration = Duration::from_secs(5);

fn is_there() -> bool {
    if !is_installed(Kind::Etcd) {
        dblock_tests::left_out("an etcd of its own", "install etcd-server");
    }
    is_installed(Kind::Etcd)
}

async fn single() -> Option<Server> {
    if !is_there() {
        return None;
    }
    Some(Server::fresh(Kind::Etcd, Purpose::Tests).await.unwrap())
}

async fn cluster() -> Option<Ensemble> {
    if !is_there() {
        return None;
    }
    Some(Ensemble::fresh(Kind::Etcd, Purpose::Tests).await.unwrap())
}

fn store(servers: &[Server]) -> EtcdStore {
    EtcdStore::new(servers.iter().map(Server::url)).unwrap()
}

async fn manager(servers: &[Server]) -> LockManager {
    LockManager::builder(store(servers)).build().await.unwrap()
}

fn options() -> LockOptions {
    LockOptions::new().ttl(TTL).wait(Duration::from_secs(40))
}

fn acquire(key: &str) -> Request {
    acquire_for(TTL, key)
}

fn acquire_for(ttl: Duration, key: &str) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), ttl, "test");
    Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask))
}

async fn one(store: &EtcdStore, request: Request) -> Result<Outcome, StoreError> {
    store.apply(&[request]).await.remove(0)
}

/// The place of the leader.
async fn leader(cluster: &Ensemble) -> usize {
    cluster.leader().await.expect("somebody leads")
}

/// Another process finds the key busy while `guard` is held, and takes it with a larger token after its
/// release.
async fn assert_goes_on(servers: &[Server], guard: dblock::LockGuard) {
    let other = manager(servers).await;
    assert!(!guard.is_lost(), "{guard:?}");
    let refused = other.lock(guard.key()).ttl(TTL).try_acquire().await;
    assert!(refused.unwrap().is_none(), "somebody else has entered");
    let (key, token) = (guard.key().to_owned(), guard.fence_token());
    guard.release().await.unwrap();
    let next = other.lock(&key).options(&options()).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_leader_that_is_killed() {
    let Some(mut ensemble) = cluster().await else {
        return;
    };
    let locks = manager(&ensemble.servers).await;
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let leads = leader(&ensemble).await;
    ensemble.servers[leads].kill();
    // Renewed more than once by another leader.
    sleep(TTL * 2).await;
    assert_goes_on(&ensemble.servers, guard).await;
    ensemble.restart_killed().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fence_tokens_grow_whatever_a_leader_that_was_stopped_and_woken_does() {
    let Some(ensemble) = cluster().await else { return };
    let (one, other) = (manager(&ensemble.servers).await, manager(&ensemble.servers).await);
    let mut last = 0;
    for round in 0..2 {
        let locks = if round % 2 == 0 { &one } else { &other };
        let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
        assert!(guard.fence_token() > last);
        last = guard.fence_token();
        let leads = leader(&ensemble).await;
        ensemble.servers[leads].pause().unwrap();
        sleep(TTL).await;
        assert!(!guard.is_lost(), "the others have a leader, who renews it");
        ensemble.servers[leads].wake().unwrap();
        sleep(TTL).await;
        match guard.release().await {
            Ok(()) => {}
            // Some versions do this; the README says which. The holder was told.
            Err(LockError::Lost { .. }) => {
                eprintln!("the leader that was woken has revoked a lease that was in use");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_nothing_is_granted_and_a_holder_is_stopped_in_time() {
    let Some(mut ensemble) = cluster().await else {
        return;
    };
    let (locks, other) = (manager(&ensemble.servers).await, manager(&ensemble.servers).await);
    let guard = locks.lock("held").options(&options()).acquire().await.unwrap();
    let (token, granted) = (guard.fence_token(), Instant::now());
    ensemble.servers[0].kill();
    ensemble.servers[1].kill();
    let renewable = granted.elapsed();
    match guard.lost().await {
        LockError::Lost { held, .. } => assert!(held <= renewable + TTL, "{held:?}"),
        other => panic!("{other:?}"),
    }
    let wait = Duration::from_secs(5);
    let refused = other
        .lock("free")
        .ttl(TTL)
        .wait(wait)
        .acquire()
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, LockError::Store { source, .. } if source.is_retryable()),
        "a store that is down is not busy: {refused:?}"
    );
    ensemble.restart_killed().await.unwrap();
    let next = other.lock("held").options(&options()).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_a_single_member_keeps_the_locks() {
    let Some(mut server) = single().await else { return };
    let locks = manager(std::slice::from_ref(&server)).await;
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    server.kill();
    server.restart().await.unwrap();
    assert_goes_on(std::slice::from_ref(&server), guard).await;
}

/// As after a local hand-over to a caller with a shorter ttl: if the process dies, the key is busy for the last
/// ttl, and not for the first one.
#[tokio::test]
async fn a_lease_gets_shorter_when_its_longer_time_has_passed() {
    let Some(server) = single().await else { return };
    let store = store(std::slice::from_ref(&server));
    let (first, second, slack) = (TTL, Duration::from_secs(2), Duration::from_secs(1));
    let mut request = acquire("k");
    let asked = Instant::now();
    let granted = one(&store, request.clone()).await;
    assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
    request.action = Action::Extend(Extend::new(1, second));
    let began = Instant::now();
    loop {
        let extended = one(&store, request.clone()).await.unwrap();
        let Outcome::Extended { remaining, .. } = extended else {
            panic!("{extended:?}");
        };
        if remaining <= second {
            break;
        }
        let until = began.elapsed() + remaining;
        assert!(until <= first + slack, "it was renewed: {remaining:?}");
        sleep(Duration::from_millis(200)).await;
    }
    assert!(asked.elapsed() + second + slack >= first, "it was cut off");
    request.action = Action::Release;
    let released = one(&store, request).await.unwrap();
    assert!(
        matches!(released, Outcome::Released(Released::Freed)),
        "{released:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_woken_by_a_release_and_by_the_end_of_a_lease() {
    let Some(server) = single().await else { return };
    let servers = std::slice::from_ref(&server);
    let (locks, other) = (manager(servers).await, manager(servers).await);
    let mut took = Vec::new();
    // The machine may stand still just then. Without a wake-up each takes 0.9 s.
    while took.iter().all(|took| *took >= Duration::from_millis(800)) {
        assert!(took.len() < 5, "{took:?}");
        let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
        let other = other.clone();
        let waiter =
            tokio::spawn(async move { other.lock("k").options(&options()).acquire().await.unwrap() });
        sleep(Duration::from_secs(2)).await;
        let since = Instant::now();
        guard.release().await.unwrap();
        let next = waiter.await.unwrap();
        took.push(since.elapsed());
        next.release().await.unwrap();
    }

    one(&store(servers), acquire("dead")).await.unwrap();
    let since = Instant::now();
    let guard = locks.lock("dead").options(&options()).acquire().await.unwrap();
    assert!(
        since.elapsed() < TTL + Duration::from_secs(5),
        "{:?}",
        since.elapsed()
    );
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_broke_or_hung_is_not_used_again() {
    let Some(server) = single().await else { return };
    let address = server.url().strip_prefix("http://").unwrap();
    let proxy = Proxy::start(address.parse().unwrap());
    let store = EtcdStore::new([format!("http://{}", proxy.address())]).unwrap();
    one(&store, acquire("before")).await.unwrap();

    let events = counted("etcd", Event::Reconnected);
    proxy.set(Traffic::Refused);
    let broken = timeout(Duration::from_secs(10), one(&store, acquire("a")))
        .await
        .unwrap()
        .unwrap_err();
    assert!(broken.is_retryable(), "{broken}");
    proxy.set(Traffic::Flows);
    one(&store, acquire("a")).await.unwrap();

    proxy.set(Traffic::BlackHole);
    let hung = timeout(Duration::from_millis(300), one(&store, acquire("b"))).await;
    assert!(hung.is_err(), "{hung:?}");
    proxy.set(Traffic::Flows);
    let next = timeout(Duration::from_secs(10), one(&store, acquire("c"))).await;
    next.expect("on a new connection").unwrap();
    assert!(counted("etcd", Event::Reconnected) > events + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_did_not_answer_in_time_is_not_the_first_to_be_asked_again() {
    let Some(server) = single().await else { return };
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", silent.local_addr().unwrap());
    let store = EtcdStore::new([address.as_str(), server.url()]).unwrap();
    // The time of the first request is over as soon as the silent member is asked.
    let _asked = tokio::select! {
        answer = one(&store, acquire("first")) => panic!("answered: {answer:?}"),
        asked = silent.accept() => asked.unwrap(),
    };
    one(&store, acquire("next")).await.unwrap();
    let again = silent.accept().now_or_never();
    assert!(again.is_none(), "it was asked again: {again:?}");
}

/// One that was set up anew beside the others. Nothing is granted there.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_another_cluster_is_not_used() {
    let (Some(server), Some(other)) = (single().await, single().await) else {
        return;
    };
    let address = server.url().strip_prefix("http://").unwrap();
    let proxy = Proxy::start(address.parse().unwrap());
    let store = EtcdStore::new([format!("http://{}", proxy.address()), other.url().to_owned()]).unwrap();
    one(&store, acquire("k")).await.unwrap();
    proxy.set(Traffic::Refused);
    one(&store, acquire("k")).await.unwrap_err();
    let refused = one(&store, acquire("k")).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unreachable);
    assert!(refused.to_string().contains("another cluster"), "{refused}");
    proxy.set(Traffic::Flows);
    let busy = one(&store, acquire("k")).await.unwrap();
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
}

/// A member would close a connection that is tried too often, after the third time.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_hears_nothing_goes_on() {
    let Some(server) = single().await else { return };
    let store = store(std::slice::from_ref(&server));
    let listens = timeout(Duration::from_secs(20), store.listen(&|_| ())).await;
    assert!(listens.is_err(), "it ended: {listens:?}");
}

/// How many writes the cluster has agreed on, by the metrics of its member.
async fn writes(server: &Server) -> usize {
    let address = server.url().strip_prefix("http://").unwrap();
    let mut connection = TcpStream::connect(address).await.unwrap();
    let ask = b"GET /metrics HTTP/1.0\r\n\r\n";
    connection.write_all(ask).await.unwrap();
    let mut said = String::new();
    connection.read_to_string(&mut said).await.unwrap();
    let name = "etcd_server_proposals_committed_total ";
    let count = said.lines().find_map(|line| line.strip_prefix(name));
    count.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_reads_costs_the_cluster_no_write() {
    const TIMES: usize = 100;
    // The end of a lease is a write of etcd's own.
    const TTL: Duration = Duration::from_mins(1);
    let acquire = |key| acquire_for(TTL, key);
    let Some(server) = single().await else { return };
    let store = store(std::slice::from_ref(&server));
    let mut held = acquire("k");
    one(&store, held.clone()).await.unwrap();
    let before = writes(&server).await;
    for _ in 0..TIMES {
        let busy = one(&store, acquire("k")).await;
        assert!(matches!(busy, Ok(Outcome::Busy(_))), "{busy:?}");
    }
    held.action = Action::Extend(Extend::new(1, TTL));
    for _ in 0..TIMES {
        let renewed = one(&store, held.clone()).await;
        assert!(matches!(renewed, Ok(Outcome::Extended { .. })), "{renewed:?}");
    }
    let many: Vec<_> = (0..TIMES).map(|_| acquire("k")).collect();
    let busy = store.apply(&many).await;
    assert!(
        busy.iter().all(|busy| matches!(busy, Ok(Outcome::Busy(_)))),
        "{busy:?}"
    );
    assert_eq!(store.inspect(&InspectFilter::new()).await.unwrap().len(), 1);
    let reads = writes(&server).await - before;
    assert_eq!(reads, 0);

    for _ in 0..TIMES {
        let mut pair = acquire("other");
        one(&store, pair.clone()).await.unwrap();
        pair.action = Action::Release;
        one(&store, pair).await.unwrap();
    }
    // The key is made and deleted each time, and the lease is made once.
    assert_eq!(writes(&server).await - before, 2 * TIMES + 1);
}

/// It is written without a look, because it was freed here.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_was_freed_here_may_have_another_holder() {
    let Some(server) = single().await else { return };
    let [store, other] = [(); 2].map(|()| store(std::slice::from_ref(&server)));
    let pair = async || {
        let mut held = acquire("k");
        let granted = one(&store, held.clone()).await.unwrap();
        held.action = Action::Release;
        one(&store, held).await.unwrap();
        granted
    };
    let is_wanted = |outcome: Outcome| match outcome {
        Outcome::Granted { wanted, .. } => wanted,
        other => panic!("{other:?}"),
    };
    assert!(!is_wanted(pair().await));

    let mut theirs = acquire("k");
    one(&other, theirs.clone()).await.unwrap();
    let before = writes(&server).await;
    for _ in 0..10 {
        let busy = one(&store, acquire("k")).await.unwrap();
        assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    }
    assert_eq!(writes(&server).await - before, 1, "it is looked at from then on");
    theirs.action = Action::Release;
    one(&other, theirs).await.unwrap();

    assert!(!is_wanted(pair().await));
    let mut held = acquire("k");
    one(&store, held.clone()).await.unwrap();
    let mut waits = acquire("k");
    if let Action::Acquire(ask) = &mut waits.action {
        ask.wanted_for = Some(TTL);
    }
    one(&other, waits).await.unwrap();
    held.action = Action::Release;
    one(&store, held).await.unwrap();
    assert!(is_wanted(pair().await), "another process has waited meanwhile");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_ends_leaves_no_lease() {
    let Some(server) = single().await else { return };
    let locks = manager(std::slice::from_ref(&server)).await;
    for key in ["one", "two"] {
        let guard = locks.lock(key).options(&options()).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
    let mut client = Client::connect([server.url()], None).await.unwrap();
    assert_eq!(
        client.leases().await.unwrap().leases().len(),
        1,
        "for the next lock"
    );
    locks.shutdown(TTL).await;
    assert!(client.leases().await.unwrap().leases().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_of_the_users_can_check_the_token() {
    let Some(server) = single().await else { return };
    let servers = std::slice::from_ref(&server);
    let (store, locks) = (store(servers), manager(servers).await);
    let mut client = Client::connect([server.url()], None).await.unwrap();
    let mut writes = async |token: i64| {
        let write = Txn::new()
            .when([store.holds("k", token)])
            .and_then([TxnOp::put("work", "done", None)]);
        client.txn(write).await.unwrap().succeeded()
    };
    for nothing in [0, 1, 1 << 30] {
        assert!(!writes(nothing).await, "nobody has ever held it");
    }
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    guard.pin().await.unwrap();
    let token = guard.fence_token();
    assert!(writes(token).await);
    assert!(locks.admin().force_release("k").await.unwrap());
    assert!(!writes(token).await, "it is free");
    let other = manager(servers).await;
    let next = other.lock("k").options(&options()).acquire().await.unwrap();
    assert!(!writes(token).await, "another one holds it");
    assert!(writes(next.fence_token()).await);
    next.release().await.unwrap();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_row_is_left_alone_and_fails_its_own_key_only() {
    let Some(server) = single().await else { return };
    let mut client = Client::connect([server.url()], None).await.unwrap();
    client.put("dblock/lock/text", "not ours", None).await.unwrap();
    let store = store(std::slice::from_ref(&server));
    let answers = store.apply(&["text", "good"].map(acquire)).await;
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert!(matches!(answers[1], Ok(Outcome::Granted { .. })), "{answers:?}");
    let key = Key::new(None, "text").unwrap();
    assert_eq!(
        store.force_release(&key).await.unwrap_err().kind(),
        StoreErrorKind::Schema
    );
    let kept = client.get("dblock/lock/text", None).await.unwrap();
    assert_eq!(kept.kvs()[0].value(), b"not ours");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_cluster_is_said() {
    let Some(server) = single().await else { return };
    let locks = manager(std::slice::from_ref(&server)).await;
    let findings = locks.admin().diagnose().await.unwrap();
    let of = |check: &str| findings.iter().find(|finding| finding.check == check).unwrap();
    assert_eq!(of("compaction").severity, Severity::Note, "{findings:?}");
    assert!(of("version").found.starts_with("etcd 3."), "{findings:?}");
    let mut client = Client::connect([server.url()], None).await.unwrap();
    client.put("a", "1", None).await.unwrap();
    let second = client.put("a", "2", None).await.unwrap();
    client
        .compact(second.header().unwrap().revision(), None)
        .await
        .unwrap();
    let findings = locks.admin().diagnose().await.unwrap();
    let compaction = findings
        .iter()
        .find(|finding| finding.check == "compaction")
        .unwrap();
    assert_eq!(compaction.severity, Severity::Fine, "{findings:?}");
}

#[tokio::test]
async fn an_address_that_nobody_answers_is_an_error_without_the_password() {
    let store = EtcdStore::new(["http://127.0.0.1:1"])
        .unwrap()
        .user("locks", "hush");
    let error = store.check_schema().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    let shown = format!("{error} {error:?} {store:?}");
    assert!(!shown.contains("hush"), "{shown}");
}

#[tokio::test]
async fn an_error_names_the_members_that_cannot_be_used_and_why() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    let store = EtcdStore::new(["http://127.0.0.1:1", &silent]).unwrap();
    let said = store.check_schema().await.unwrap_err().to_string();
    assert!(
        said.starts_with("no member of etcd can be used now: http://127.0.0.1:1: "),
        "{said}"
    );
    assert!(said.contains("Connection refused"), "{said}");
    assert!(
        said.contains(&format!(
            "{silent}: this member of etcd did not answer within 700ms; is it running"
        )),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
}
