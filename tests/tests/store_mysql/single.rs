//! A request that is alone goes to the server as one statement, and keeps the rules all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dblock::store::clock::Timestamp;
use dblock::store::{Outcome, Request, Store, StoreErrorKind};
use dblock_tests::proxy::{Proxy, Trick};

use crate::place::Place;
use crate::{acquire, ask, asking, extend, kind, one, release, row, run, token};

fn wanting(name: &str, length: Duration) -> Request {
    let mut ask = ask();
    ask.wanted_for = Some(length);
    asking(name, ask)
}

fn sparing(name: &str, tokens: u32) -> Request {
    let mut ask = ask();
    ask.spare_tokens = tokens;
    asking(name, ask)
}

#[tokio::test]
async fn the_usual_requests_cost_one_round_trip_each() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let proxy = Proxy::start(place.address());
    let store = place.store_at(&proxy.address().to_string());
    // The first ones connect, make the row, and prepare the statements.
    for _ in 0..2 {
        let request = acquire("k");
        token(&one(&store, request.clone()).await);
        one(&store, extend(&request, 2)).await;
        one(&store, release(&request)).await;
    }
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let count = move |_: &[u8]| {
        counter.fetch_add(1, Ordering::SeqCst);
        false
    };
    proxy.look_out(Trick::LoseReply, Box::new(count));
    let holder = acquire("k");
    token(&one(&store, holder.clone()).await);
    one(&store, extend(&holder, 2)).await;
    one(&store, release(&holder)).await;
    if place.is_mariadb().await {
        assert_eq!(sent.load(Ordering::SeqCst), 3, "acquire, extend and release");
    }

    token(&one(&store, acquire("k")).await);
    let waiter = wanting("k", Duration::from_mins(5));
    assert!(matches!(one(&store, waiter.clone()).await, Outcome::Busy(_)));
    let wanted_until = row(&place.store(), "k").await.wanted_until;
    assert_ne!(wanted_until, Timestamp::EPOCH);
    let before = sent.load(Ordering::SeqCst);
    for _ in 0..10 {
        assert!(matches!(one(&store, waiter.clone()).await, Outcome::Busy(_)));
    }
    assert_eq!(sent.load(Ordering::SeqCst) - before, 10, "a waiter's looks");
    assert_eq!(row(&place.store(), "k").await.wanted_until, wanted_until);
}

#[tokio::test]
async fn a_token_passes_a_ceiling_of_any_height() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut request = acquire("k");
    token(&one(&store, request.clone()).await);
    // The middle one is the last that leaves room beside the token in a reply.
    for ceiling in [
        4_000_000_000_000_000,
        i64::MAX / 4 - 1,
        i64::MAX / 2,
        i64::MAX - 100,
    ] {
        one(&store, release(&request)).await;
        place
            .run(&format!("UPDATE {} SET fence_ceiling = {ceiling}", place.table))
            .await;
        request = sparing("k", 5);
        assert_eq!(token(&one(&store, request.clone()).await), ceiling + 1);
        assert_eq!(row(&store, "k").await.fence_ceiling, ceiling + 6);
    }
}

#[tokio::test]
async fn a_request_that_waited_for_the_table_does_not_see_an_expired_lease_as_held() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let mut admin = place.connection().await;
    for late in [extend, |request: &Request, _| release(request)] {
        let mut rounds = 0..10;
        let outcome = loop {
            assert!(rounds.next().is_some(), "nothing but conflicts");
            let mut short = ask();
            short.ttl = Duration::from_millis(100);
            let request = asking("k", short);
            token(&one(&store, request.clone()).await);
            run(&mut admin, &format!("LOCK TABLES {} WRITE", place.table)).await;
            let late = [late(&request, 1)];
            // The server itself waits until the lease is over.
            let free = async {
                run(&mut admin, "DO SLEEP(0.15)").await;
                run(&mut admin, "UNLOCK TABLES").await;
            };
            let (mut answers, ()) = tokio::join!(store.apply(&late), free);
            match answers.remove(0) {
                // On a machine that stalls it has waited for longer than it may.
                Err(error) if error.kind() == StoreErrorKind::Conflict => {}
                answer => break answer.unwrap(),
            }
        };
        assert_eq!(outcome, Outcome::Lost);
    }
}

#[tokio::test]
async fn a_request_whose_connection_breaks_is_not_tried_again() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let user = "dblock_broken";
    place.user(user, "SELECT, INSERT, UPDATE, DELETE").await;
    let store = place.store_as(user, "pw");
    let request = acquire("k");
    token(&one(&store, request.clone()).await);
    for next in [extend(&request, 2), release(&request), acquire("k")] {
        place.kill_connections_of(user).await;
        // MySQL reads first, and can try again.
        if place.is_mariadb().await {
            let answer = store.apply(std::slice::from_ref(&next)).await.remove(0);
            assert_eq!(kind(answer).0, StoreErrorKind::Interrupted);
        }
        let outcome = one(&store, next).await;
        assert!(!matches!(outcome, Outcome::Lost), "{outcome:?}");
    }
}
