//! A connection that breaks in a caller's turn to take the key: the other callers of its process go on.

use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock_tests::backend::eventually;
use dblock_tests::proxy::{Proxy, Traffic, Trick};
use dblock_tests::{Backend, on_every_store};
use tokio::time::timeout;

use super::taken::enters;
use super::{Failure, is_free, on_its_pool};
use crate::long;

on_every_store!(servers:
    a_begin_that_hangs_stops_nobody,
    a_take_that_hangs_stops_nobody,
    a_take_whose_answer_is_lost_stops_nobody,
);

/// For how long the caller waits whose connection breaks.
const WAIT: Duration = Duration::from_secs(3);

/// Its turn lasts 2.5 seconds at most. Then it has a lease, and keeps that for a second while it waits for its pool. A
/// machine may stall for as long again.
const SOON: Duration = Duration::from_secs(7);

/// The key in the take: as a parameter of PostgreSQL's, and in MySQL's text.
const TAKE: [&[u8]; 2] = [b"\0\0\0\x03key", b"X'6b6579'"];

async fn a_begin_that_hangs_stops_nobody(backend: Backend) {
    others_go_on(backend, Trick::Swallow, &[b"BEGIN"]).await;
}

async fn a_take_that_hangs_stops_nobody(backend: Backend) {
    others_go_on(backend, Trick::Swallow, &TAKE).await;
}

/// The server has taken the key, and rolls back when the connection is gone.
async fn a_take_whose_answer_is_lost_stops_nobody(backend: Backend) {
    others_go_on(backend, Trick::LoseReply, &TAKE).await;
}

/// Plays `trick` on the first request with one of the `words`. From then on the pool has no good connection.
async fn others_go_on(backend: Backend, trick: Trick, words: &'static [&'static [u8]]) {
    let locks = backend.manager().await;
    is_free(&locks).await;
    let url = backend.url().unwrap();
    let address = url.split(['@', '/']).nth_back(1).unwrap();
    let mut addresses = address.to_socket_addrs().unwrap();
    let proxy = Arc::new(Proxy::start(addresses.next().unwrap()));
    let far = url.replace(address, &proxy.address().to_string());
    on_its_pool!(backend, pool => {
        let far = pool.options().clone().max_connections(1).connect(&far).await.unwrap();
        let breaks = Arc::clone(&proxy);
        let is_it = move |sent: &[u8]| {
            let is_it = words.iter().any(|word| sent.windows(word.len()).any(|part| part == *word));
            if is_it {
                breaks.set(Traffic::BlackHole);
            }
            is_it
        };
        proxy.look_out(trick, Box::new(is_it));
        let call = tokio::spawn({
            let locks = locks.clone();
            async move {
                let call = locks.lock("key").options(&long().wait(WAIT));
                call.transaction(&far, async |_| -> Result<(), Failure> { panic!("it has no connection") }).await
            }
        });
        eventually("its connection is broken", || proxy.played() > 0).await;
        timeout(SOON, enters(&locks, pool)).await.expect("the others go on").unwrap();
        let ended = timeout(SOON, call).await.expect("it ends in time").unwrap();
        assert_eq!(ended.unwrap_err().kind(), StoreErrorKind::Unreachable);
    });
    is_free(&backend.manager().await).await;
}
