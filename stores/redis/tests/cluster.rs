//! A Redis Cluster: what is refused, slots that move, a server that dies.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fake;

use std::sync::Arc;
use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Released, Request, Store, StoreError, StoreErrorKind, WakeUp};
use dblock::{InspectFilter, Key, LockManager, LockOptions};
use dblock_core::store::events::{Event, counted};
use dblock_redis::RedisStore;
use dblock_servers::{Kind, Purpose, Server, is_installed};
use dblock_sharded::ShardedStore;
use futures_util::future::join_all;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;
use tokio::time::timeout;
use uuid::Uuid;

/// No change of the cluster takes this long.
const LIMIT: Duration = Duration::from_mins(3);

async fn fresh() -> Option<Server> {
    if !is_installed(Kind::RedisCluster) {
        dblock_tests::left_out("Redis servers of its own", "install redis-server");
        return None;
    }
    let cluster = Server::fresh(Kind::RedisCluster, Purpose::Tests).await;
    Some(cluster.unwrap())
}

fn acquire(key: &str, lease: Uuid) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    Request::new(Key::new(None, key).unwrap(), lease, Action::Acquire(ask))
}

async fn one(store: &RedisStore, key: &str) -> Result<Outcome, StoreError> {
    store.apply(&[acquire(key, Uuid::now_v7())]).await.remove(0)
}

/// The servers, each by the address that the cluster's URL has for it.
async fn connect(cluster: &Server) -> Vec<(String, MultiplexedConnection)> {
    let (user, addresses) = cluster
        .url()
        .trim_start_matches("redis+cluster://")
        .split_once('@')
        .unwrap();
    // A busy machine is given more than the driver's half a second.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(20)));
    let mut servers = Vec::new();
    for address in addresses.split(',') {
        let client = redis::Client::open(format!("redis://{user}@{address}")).unwrap();
        servers.push((
            address.to_owned(),
            client
                .get_multiplexed_async_connection_with_config(&patient)
                .await
                .unwrap(),
        ));
    }
    servers
}

async fn said<T: redis::FromRedisValue>(server: &mut MultiplexedConnection, words: &str) -> T {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    command.arg(words.collect::<Vec<_>>());
    command.query_async(server).await.unwrap()
}

#[tokio::test]
async fn what_does_not_fit_a_cluster_is_refused() {
    let Some(cluster) = fresh().await else { return };
    let (address, _) = connect(&cluster).await.remove(0);
    let (user, _) = cluster.url().split_once('@').unwrap();
    let alone = format!("{user}@{address}").replace("redis+cluster", "redis");
    let shards = |number| format!("{}?shards={number}", cluster.url());
    one(&RedisStore::new(&shards(3)).unwrap(), "k").await.unwrap();
    let refused = [
        (RedisStore::new(&alone).unwrap(), "redis+cluster://"),
        (RedisStore::new(&shards(4)).unwrap(), "into 3 shards"),
        (
            RedisStore::new(&shards(3)).unwrap().prefix("a{b"),
            "without braces",
        ),
    ];
    for (store, says) in refused {
        for error in [
            store.check_schema().await.unwrap_err(),
            one(&store, "k").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    }
    let other = RedisStore::new(&shards(4)).unwrap().prefix("other");
    one(&other, "k").await.unwrap();
}

/// Older programs have written the first record only.
#[tokio::test]
async fn a_number_of_shards_that_the_first_record_alone_says_is_kept() {
    let Some(cluster) = fresh().await else { return };
    let mut servers = connect(&cluster).await;
    let mut others_say_nothing = false;
    for prefix in ["a", "b", "c", "d"] {
        let record = format!("{{{prefix}:0}}:shards");
        let mut first_says_4 = async || {
            for (_, server) in &mut servers {
                let mut set = redis::cmd("SET");
                // The others say who has it.
                if set.arg(&record).arg(4).exec_async(server).await.is_ok() {
                    // It answers later than the others.
                    said::<String>(server, "CLIENT PAUSE 50 WRITE").await;
                }
            }
        };
        let store = |number| {
            let store = RedisStore::new(&format!("{}?shards={number}", cluster.url()));
            store.unwrap().prefix(prefix)
        };
        let refused = async || {
            let refused = one(&store(3), "k").await.unwrap_err();
            assert_eq!(refused.kind(), StoreErrorKind::Unsupported, "{refused}");
            let says = format!("into 4 shards, as the key {record} says");
            assert!(refused.to_string().contains(&says), "{refused}");
        };
        first_says_4().await;
        refused().await;
        // On a slow machine it may answer too late.
        others_say_nothing |= one(&store(4), "k").await.is_ok();

        for (_, mut server) in connect(&cluster).await {
            said::<String>(&mut server, "FLUSHALL").await;
        }
        one(&store(3), "k").await.unwrap();
        first_says_4().await;
        refused().await;
    }
    assert!(others_say_nothing);
}

#[tokio::test]
async fn a_slot_keeps_its_locks_while_it_is_moved_and_afterwards() {
    let Some(cluster) = fresh().await else { return };
    let mut servers = connect(&cluster).await;
    // All keys have one slot.
    let store = RedisStore::new(&format!("{}?shards=1", cluster.url())).unwrap();
    let held = ["a", "b"].map(|key| acquire(key, Uuid::now_v7()));
    for granted in store.apply(&held).await {
        assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
    }

    let slot: u16 = said(&mut servers[0].1, "CLUSTER KEYSLOT {dblock:0}").await;
    let mut ids = Vec::new();
    let mut source = None;
    for (place, (_, server)) in servers.iter_mut().enumerate() {
        ids.push(said::<String>(server, "CLUSTER MYID").await);
        let keys: usize = said(server, &format!("CLUSTER COUNTKEYSINSLOT {slot}")).await;
        source = source.or((keys > 0).then_some(place));
    }
    let source = source.unwrap();
    let target = (source + 1) % servers.len();
    let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[source]);
    said::<String>(&mut servers[target].1, &importing).await;
    let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[target]);
    said::<String>(&mut servers[source].1, &migrating).await;
    // Half of the keys are on each side.
    let password = cluster
        .url()
        .split_once('@')
        .unwrap()
        .0
        .rsplit_once(':')
        .unwrap()
        .1;
    let address = servers[target].0.clone();
    let (host, port) = address.split_once(':').unwrap();
    for key in ["lock:b", "shards"] {
        let moved = format!("MIGRATE {host} {port} {{dblock:0}}:{key} 0 5000 AUTH {password}");
        said::<String>(&mut servers[source].1, &moved).await;
    }

    // One that begins now must learn the number of shards.
    let late = RedisStore::new(&format!("{}?shards=1", cluster.url())).unwrap();
    late.check_schema().await.unwrap();
    let busy = one(&late, "a").await;
    assert!(matches!(busy, Ok(Outcome::Busy(_))), "{busy:?}");
    let asked = ["a", "b", "new"].map(|key| acquire(key, Uuid::now_v7()));
    let answers = store.apply(&asked).await;
    assert!(matches!(answers[0], Ok(Outcome::Busy(_))), "{answers:?}");
    assert!(matches!(answers[1], Ok(Outcome::Busy(_))), "{answers:?}");
    assert!(matches!(answers[2], Ok(Outcome::Granted { .. })), "{answers:?}");

    let moved = format!("MIGRATE {host} {port} {{dblock:0}}:lock:a 0 5000 AUTH {password}");
    said::<String>(&mut servers[source].1, &moved).await;
    for place in [target, source] {
        let done = format!("CLUSTER SETSLOT {slot} NODE {}", ids[target]);
        said::<String>(&mut servers[place].1, &done).await;
    }
    for request in held {
        let busy = one(&store, request.key.as_ref()).await.unwrap();
        assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
        let release = Request::new(request.key, request.lease_id, Action::Release);
        let freed = store.apply(&[release]).await.remove(0).unwrap();
        assert!(matches!(freed, Outcome::Released(Released::Freed)), "{freed:?}");
    }
    let rows = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    assert_eq!(rows.len(), 3, "each row is seen once: {rows:?}");
}

#[tokio::test]
async fn the_server_that_another_one_names_is_asked() {
    let Some(cluster) = fresh().await else { return };
    let mut servers = connect(&cluster).await;
    let slot: u16 = said(&mut servers[0].1, "CLUSTER KEYSLOT {dblock:0}").await;
    let real = RedisStore::new(&format!("{}?shards=1", cluster.url())).unwrap();
    one(&real, "before").await.unwrap();
    let mut owner = None;
    for (address, server) in &mut servers {
        let keys: usize = said(server, &format!("CLUSTER COUNTKEYSINSLOT {slot}")).await;
        owner = owner.or((keys > 0).then(|| address.clone()));
    }
    let moved = format!("-MOVED {slot} {}\r\n", owner.unwrap());

    // It believes that it has all slots until it is asked about one.
    let (listener, stale) = fake::bind().await;
    let port = stale.rsplit_once(':').unwrap().1.to_owned();
    fake::serve(listener, move |words| match &*words[0] {
        "CLUSTER" if words[1] == "NODES" => Some(fake::text("")),
        "CLUSTER" => Some(format!(
            "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$0\r\n\r\n:{port}\r\n$2\r\nid\r\n"
        )),
        "INFO" => Some(fake::text(
            "redis_version:7.0.15\r\nredis_mode:cluster\r\nmaxmemory_policy:noeviction\r\nrole:master\r\n",
        )),
        "EVALSHA" | "SET" | "GET" => Some(moved.clone()),
        _ => None,
    });
    let (user, _) = cluster.url().split_once('@').unwrap();
    let store = RedisStore::new(&format!("{user}@{stale}?shards=1")).unwrap();
    let redirects = counted("redis", Event::Redirected);
    for key in ["a", "b"] {
        let granted = one(&store, key).await;
        assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
    }
    assert!(counted("redis", Event::Redirected) > redirects);
}

#[tokio::test]
async fn a_server_that_dies_takes_its_own_keys_with_it_only() {
    let Some(mut cluster) = fresh().await else { return };
    let locks = LockManager::builder(RedisStore::new(cluster.url()).unwrap())
        .build()
        .await
        .unwrap();
    cluster.kill();
    let (mut granted, mut failed) = (0, 0);
    for number in 0..32 {
        let wait = LockOptions::new().wait(Duration::from_millis(200));
        match locks.lock(format!("k{number}")).options(&wait).acquire().await {
            Ok(_) => granted += 1,
            Err(_) => failed += 1,
        }
    }
    assert!(granted > 0 && failed > 0, "{granted} granted, {failed} failed");
    cluster.restart().await.unwrap();
    let options = LockOptions::new().wait(Duration::from_secs(30));
    for number in 0..32 {
        let guard = locks
            .lock(format!("k{number}"))
            .options(&options)
            .acquire()
            .await
            .unwrap();
        guard.release().await.unwrap();
    }
}

/// The locks of the server are lost, and nobody else's.
async fn only_the_keys_of_a_server_that_hangs_are_lost(cluster: &Server, locks: LockManager) {
    let options = LockOptions::new()
        .ttl(Duration::from_secs(3))
        .wait(Duration::from_secs(3));
    let mut guards = Vec::new();
    for number in 0..32 {
        let key = format!("k{number}");
        let guard = locks.lock(&key).options(&options).acquire().await.unwrap();
        guards.push((key, guard));
    }
    let rows: Vec<String> = said(&mut connect(cluster).await[0].1, "KEYS *:lock:*").await;
    let is_there = |key: &str| rows.iter().any(|row| row.ends_with(&format!(":lock:{key}")));
    let (stuck, healthy): (Vec<_>, Vec<_>) = guards.into_iter().partition(|(key, _)| is_there(key));
    assert!(!stuck.is_empty() && !healthy.is_empty());

    cluster.pause().unwrap();
    for (_, guard) in &stuck {
        guard.lost().await;
    }
    for (key, guard) in healthy {
        assert!(!guard.is_lost(), "{key}");
        guard.release().await.unwrap();
        let again = locks.lock(&key).options(&options).acquire().await;
        let again = again.unwrap_or_else(|error| panic!("{key}: {error}"));
        again.release().await.unwrap();
    }
    cluster.wake().unwrap();
    let options = options.wait(Duration::from_secs(30));
    for (key, _) in &stuck {
        let guard = locks.lock(key).options(&options).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_hangs_takes_its_own_keys_with_it_only() {
    let Some(cluster) = fresh().await else { return };
    let store = RedisStore::new(cluster.url()).unwrap();
    let locks = LockManager::builder(store).build().await.unwrap();
    only_the_keys_of_a_server_that_hangs_are_lost(&cluster, locks).await;
}

#[tokio::test]
async fn a_server_of_a_shard_that_hangs_takes_its_own_keys_with_it_only() {
    let Some(cluster) = fresh().await else { return };
    let store = Arc::new(RedisStore::new(cluster.url()).unwrap()) as Arc<dyn Store>;
    let shards = ShardedStore::new([("one", store)]).unwrap();
    let locks = LockManager::builder(shards).build().await.unwrap();
    only_the_keys_of_a_server_that_hangs_are_lost(&cluster, locks).await;
}

/// It has at most one of the keys that say how many shards there are, whatever the prefix is.
#[tokio::test]
async fn a_program_starts_while_a_server_hangs() {
    let Some(cluster) = fresh().await else { return };
    let (_, first) = &mut connect(&cluster).await[0];
    // The first of three servers has a third of the slots.
    let mut is_there = async |key: &str| said::<u16>(first, &format!("CLUSTER KEYSLOT {key}")).await < 5_461;
    assert!(is_there("{dblock:0}:shards").await);
    let mut programs = Vec::new();
    for prefix in ["dblock", "g", "p"] {
        let names = RedisStore::new(cluster.url()).unwrap().prefix(prefix);
        let mut number = 0;
        while is_there(&names.row_key(&format!("k{number}"))).await {
            number += 1;
        }
        programs.push((names, format!("k{number}")));
    }
    cluster.pause().unwrap();
    let wait = LockOptions::new().wait(Duration::from_secs(30));
    let started = programs.into_iter().map(async |(names, healthy)| {
        let locks = LockManager::builder(names).build().await.unwrap();
        let guard = locks.lock(healthy).options(&wait).acquire().await.unwrap();
        guard.release().await.unwrap();
    });
    join_all(started).await;
}

/// A server that takes part in no cluster any more, but has all slots by its own map, and does not serve them.
async fn cut_off(epoch: u64, password: &str) -> (Server, String) {
    let former = fresh().await.unwrap();
    let (address, mut server) = connect(&former).await.remove(0);
    let mut commands = vec!["CLUSTER RESET HARD".to_owned()];
    if epoch > 0 {
        commands.push(format!("CLUSTER SET-CONFIG-EPOCH {epoch}"));
    }
    commands.extend([
        "CONFIG SET cluster-require-full-coverage yes".to_owned(),
        "CLUSTER ADDSLOTSRANGE 0 16382".to_owned(),
        format!("CONFIG SET requirepass {password}"),
    ]);
    for command in commands {
        said::<String>(&mut server, &command).await;
    }
    (former, address)
}

/// Its map is older than that of the others; or it seems to be newer, and the server does not serve its slots.
#[tokio::test]
async fn a_server_that_is_cut_off_keeps_nobody_away() {
    let Some(cluster) = fresh().await else { return };
    let (user, addresses, password) = user(&cluster);
    let (_former, older) = cut_off(0, password).await;
    // The servers are asked in any order.
    for number in 0..16 {
        let store = RedisStore::new(&format!("{user}@{older},{addresses}")).unwrap();
        let granted = one(&store, &format!("k{number}")).await;
        assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
    }

    let (_former, newer) = cut_off(100, password).await;
    let store = RedisStore::new(&format!("{user}@{newer},{addresses}")).unwrap();
    // That it serves nobody is found out by the first question, about the number of shards.
    let granted = one(&store, "k").await;
    assert!(matches!(granted, Ok(Outcome::Granted { .. })), "{granted:?}");
}

#[tokio::test]
async fn a_script_of_the_users_finds_the_row_of_a_lock() {
    let Some(cluster) = fresh().await else { return };
    let names = RedisStore::new(cluster.url()).unwrap();
    let locks = LockManager::builder(RedisStore::new(cluster.url()).unwrap()).namespace("billing");
    let locks = locks.build().await.unwrap();
    let mut servers = connect(&cluster).await;
    let holds = redis::Script::new(&format!(
        "{} return dblock_holds(KEYS[1], ARGV[1]) and 1 or 0",
        dblock_redis::VERIFY
    ));
    for number in 0..8 {
        let guard = locks.lock(format!("k{number}")).acquire().await.unwrap();
        guard.pin().await.unwrap();
        let mut found = 0;
        for (_, server) in &mut servers {
            let mut holds = holds.key(names.row_key(guard.full_key()));
            // Only one server has the slot.
            found += holds
                .arg(guard.fence_token())
                .invoke_async(server)
                .await
                .unwrap_or(0);
        }
        assert_eq!(found, 1, "{}", guard.full_key());
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_server_that_has_left_is_listened_to_no_longer() {
    let Some(cluster) = fresh().await else { return };
    let mut servers = connect(&cluster).await;
    let store = Arc::new(RedisStore::new(cluster.url()).unwrap());
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = Arc::clone(&store);
    let listener =
        tokio::spawn(async move { listening.listen(&move |wake_up| drop(tell.send(wake_up))).await });
    assert_eq!(told.recv().await, Some(WakeUp::Listening));
    let mut heard = None;
    for (place, (_, server)) in servers.iter_mut().enumerate() {
        let clients: String = said(server, "CLIENT LIST TYPE pubsub").await;
        heard = heard.or((!clients.is_empty()).then_some(place));
    }
    let heard = heard.unwrap();
    let target = (heard + 1) % servers.len();

    // All its slots go to the next server.
    said::<String>(&mut servers[heard].1, "FLUSHALL").await;
    let id: String = said(&mut servers[target].1, "CLUSTER MYID").await;
    let own: String = said(&mut servers[heard].1, "CLUSTER NODES").await;
    let own = own.lines().find(|line| line.contains("myself")).unwrap();
    let (start, end) = own.rsplit_once(' ').unwrap().1.split_once('-').unwrap();
    let mut moves = redis::pipe();
    for slot in start.parse::<u16>().unwrap()..=end.parse().unwrap() {
        moves
            .cmd("CLUSTER")
            .arg("SETSLOT")
            .arg(slot)
            .arg("NODE")
            .arg(&id)
            .ignore();
    }
    // Before the slots: a server with a larger epoch would take some of them back meanwhile.
    said::<String>(&mut servers[target].1, "CLUSTER BUMPEPOCH").await;
    moves.exec_async(&mut servers[target].1).await.unwrap();
    // It may have heard of that before it is told, and refuse as a replica.
    let _ = moves.exec_async(&mut servers[heard].1).await;
    let all_granted = async {
        for number in 0..32 {
            // The server becomes a replica, which is refused once.
            while let Err(failed) = one(&store, &format!("k{number}")).await {
                assert!(failed.is_retryable(), "{failed}");
            }
        }
    };
    timeout(LIMIT, all_granted).await.expect("the slots have moved");
    let ended = timeout(Duration::from_secs(20), listener).await;
    let ended = ended.expect("it is listened to no longer").unwrap();
    assert!(
        ended.to_string().contains("has left the Redis Cluster"),
        "{ended}"
    );
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let again = async { store.listen(&move |wake_up| drop(tell.send(wake_up))).await };
    tokio::select! {
        error = again => panic!("{error}"),
        heard = told.recv() => assert_eq!(heard, Some(WakeUp::Listening)),
    }
    let clients: String = said(&mut servers[heard].1, "CLIENT LIST TYPE pubsub").await;
    assert!(clients.is_empty(), "{clients}");
}

#[tokio::test]
async fn clients_of_the_users_connect_to_all_servers() {
    let Some(cluster) = fresh().await else { return };
    let (_, addresses, password) = user(&cluster);
    let password = password.to_owned();
    let store = RedisStore::new(&format!("redis+cluster://{addresses}")).unwrap();
    let refused = one(&store, "k").await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    let store = store.connect_with(move |server| {
        let login = server.redis_settings().clone().set_password(&password);
        async {
            // A password may take longer to get than a server may take to answer.
            tokio::time::sleep(Duration::from_millis(700)).await;
            redis::Client::open(server.set_redis_settings(login))
        }
    });
    let locks = LockManager::builder(store).build().await.unwrap();
    for number in 0..8 {
        locks
            .lock(format!("k{number}"))
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
}

/// Until the server says this.
async fn until(server: &mut MultiplexedConnection, words: &str, wanted: &str) {
    let says = async {
        while !said::<String>(server, words).await.contains(wanted) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let said = timeout(LIMIT, says).await;
    said.unwrap_or_else(|_| panic!("{words} does not say {wanted}"));
}

#[tokio::test]
async fn a_replica_takes_the_place_of_a_server_that_hangs() {
    let Some(cluster) = fresh().await else { return };
    let (_, _, password) = user(&cluster);
    let mut servers = connect(&cluster).await;
    let spare = fresh().await.unwrap();
    let (address, mut replica) = connect(&spare).await.remove(0);
    for words in [
        "CLUSTER RESET HARD".to_owned(),
        format!("CONFIG SET masterauth {password}"),
        format!("CONFIG SET requirepass {password}"),
        // Else it never takes over where the servers need long to elect it.
        "CONFIG SET cluster-replica-validity-factor 0".to_owned(),
    ] {
        said::<String>(&mut replica, &words).await;
    }
    let (_, bus): (String, String) = said(&mut replica, "CONFIG GET cluster-port").await;
    let meet = format!("CLUSTER MEET {} {bus}", address.replace(':', " "));
    said::<String>(&mut servers[0].1, &meet).await;
    let primary: String = said(&mut servers[0].1, "CLUSTER MYID").await;
    for words in ["CLUSTER INFO", "CLUSTER NODES"]
        .into_iter()
        .zip(["cluster_known_nodes:4", &primary])
    {
        until(&mut replica, words.0, words.1).await;
    }
    said::<String>(&mut replica, &format!("CLUSTER REPLICATE {primary}")).await;
    until(&mut replica, "INFO replication", "master_link_status:up").await;
    for (_, server) in &mut servers {
        // All must know the replica before they vote.
        until(server, "CLUSTER NODES", &format!("slave {primary}")).await;
    }

    let store = RedisStore::new(cluster.url()).unwrap();
    let mut keys = (0..).map(|number| format!("k{number}"));
    let mut own = async || loop {
        let key = keys.next().unwrap();
        let row = store.row_key(&key);
        if said::<u16>(&mut servers[0].1, &format!("CLUSTER KEYSLOT {row}")).await < 5_461 {
            return key;
        }
    };
    let (before, after) = (own().await, own().await);
    one(&store, &before).await.unwrap();
    // It waits for what its own connection has written, and for all that was written before.
    let last = format!("SET {}:last 1", store.row_key(&before));
    said::<String>(&mut servers[0].1, &last).await;
    assert_eq!(said::<u16>(&mut servers[0].1, "WAIT 1 5000").await, 1);
    // Not before: on a slow machine the replica would take over from a primary that is well.
    for server in servers.iter_mut().map(|(_, server)| server).chain([&mut replica]) {
        said::<String>(server, "CONFIG SET cluster-node-timeout 1000").await;
    }
    cluster.pause().unwrap();
    let answer = async |store: &RedisStore, key: &str| {
        let answered = async {
            loop {
                match timeout(Duration::from_millis(2_500), one(store, key)).await {
                    Ok(Ok(outcome)) => return outcome,
                    Ok(Err(failed)) => assert!(failed.is_retryable(), "{failed}"),
                    Err(_) => {}
                }
            }
        };
        timeout(LIMIT, answered).await.expect("the replica takes over")
    };
    let busy = answer(&store, &before).await;
    assert!(matches!(busy, Outcome::Busy(_)), "{busy:?}");
    // Only the replica knows of this one. One whose answer was lost has taken it, too.
    let _ = answer(&store, &after).await;
    let token = async |store: &RedisStore| match answer(store, &after).await {
        Outcome::Busy(holder) => holder.fence_token,
        other => panic!("{other:?}"),
    };
    let granted = token(&store).await;

    // It does not know yet that it has been replaced.
    cluster.wake().unwrap();
    let late = RedisStore::new(cluster.url()).unwrap();
    for store in [&store, &late] {
        assert_eq!(token(store).await, granted);
    }
}

/// The scheme with user and password, the addresses, and the password.
fn user(cluster: &Server) -> (&str, &str, &str) {
    let (user, addresses) = cluster.url().split_once('@').unwrap();
    (user, addresses, user.rsplit_once(':').unwrap().1)
}

#[tokio::test]
async fn a_user_needs_what_the_readme_lists() {
    let Some(cluster) = fresh().await else { return };
    let readme = include_str!("../README.md");
    let line = readme
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .unwrap();
    let (_, more) = readme
        .split_once("In a cluster the pattern of the keys is `")
        .unwrap();
    let (pattern, more) = more.split_once("`, and `").unwrap();
    let (more, _) = more.split_once('`').unwrap();
    let rights = line.replace('…', "hush").replace("~dblock:lock:*", pattern);
    let (_, addresses, _) = user(&cluster);
    for missing in more.split(' ').map(Some).chain([None]) {
        let more = more.split(' ').filter(|right| Some(*right) != missing);
        let more: Vec<_> = more.collect();
        let rights = rights.replace("locks", "locks reset");
        for (_, server) in &mut connect(&cluster).await {
            said::<String>(server, &format!("{rights} {}", more.join(" "))).await;
        }
        let store = RedisStore::new(&format!("redis+cluster://locks:hush@{addresses}")).unwrap();
        let locks = LockManager::builder(store).build().await;
        match missing {
            None => {
                let guard = locks.unwrap().lock("k").acquire().await.unwrap();
                guard.release().await.unwrap();
            }
            // It is needed only while slots are moved.
            Some("+asking") => drop(locks.unwrap()),
            Some(missing) => {
                let refused = locks.unwrap_err().to_string();
                assert!(refused.contains("refuses this user"), "{missing}: {refused}");
            }
        }
    }
}
