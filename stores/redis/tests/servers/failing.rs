//! Requests that the server cannot carry out, and connections that break.

use std::time::Duration;

use dblock::store::{Action, Outcome, Released, Store as _, StoreErrorKind, WakeUp};
use dblock::{InspectFilter, LockManager};
use dblock_core::store::events::{Event, counted};
use dblock_redis::RedisStore;
use dblock_servers::Purpose;
use dblock_tests::proxy::{Proxy, Traffic};
use tokio::time::timeout;

use super::{acquire, command, fresh, one, options, store};

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
        let (_, address) = server.url().rsplit_once('@').unwrap();
        assert!(error.to_string().starts_with(&format!("{address}: ")), "{error}");
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
    assert_eq!(released, Outcome::Released(Released::PassedOn));
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
async fn a_closed_connection_is_opened_again() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    for key in ["a", "b", "c"] {
        let guard = locks.lock(key).options(&options()).acquire().await.unwrap();
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

    let events = counted("redis", Event::Reconnected);
    proxy.set(Traffic::Refused);
    let broken = one(&store, acquire("a")).await.unwrap_err();
    assert!(broken.is_retryable(), "{broken}");
    let named = format!("{}: ", proxy.address());
    assert!(broken.to_string().starts_with(&named), "{broken}");
    proxy.set(Traffic::Flows);
    one(&store, acquire("a")).await.unwrap();

    // From here on nothing is answered on this connection.
    proxy.set(Traffic::BlackHole);
    let hung = timeout(Duration::from_millis(300), one(&store, acquire("b"))).await;
    assert!(hung.is_err(), "{hung:?}");
    proxy.set(Traffic::Flows);
    let next = timeout(Duration::from_secs(10), one(&store, acquire("c"))).await;
    next.expect("on a new connection").unwrap();
    assert!(counted("redis", Event::Reconnected) > events + 1);
}

#[tokio::test]
async fn a_server_without_room_for_another_client_is_asked_again() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let _first = super::connect(&server).await;
    command(&server, &["CONFIG", "SET", "maxclients", "1"]).await;
    let error = one(&store(&server), acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}
