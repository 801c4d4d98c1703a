//! The web example over real sockets: who is told what, and that no lock is left when a client goes away.
//!
//! On SQLite always, and on PostgreSQL when `DBLOCK_TEST_POSTGRES_URL` is set. Without it that half is left
//! out, loudly, or fails when `DBLOCK_TEST_REQUIRE_SERVERS=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod place;
mod service;

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use place::{Place, Proxy};
use service::{SOON, Service, event, request};

/// Each test on SQLite and on PostgreSQL.
macro_rules! on_each_database {
    ($($test:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $test() {
                let place = super::Place::sqlite();
                super::$test(super::Service::start(&place.url()).await).await;
                place.remove().await;
            })*
        }
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                let Some(place) = super::Place::postgres().await else { return };
                super::$test(super::Service::start(&place.url()).await).await;
                place.remove().await;
            })*
        }
    };
}

on_each_database!(
    an_order_is_settled_once,
    the_second_of_two_settles_is_told_that_it_is_busy,
    an_order_is_cancelled_unless_it_is_being_settled,
    a_client_that_goes_away_leaves_no_lock,
    a_stop_lets_a_settle_finish_and_leaves_no_lock,
    a_lost_lock_settles_nothing_and_says_so,
);

async fn an_order_is_settled_once(service: Service) {
    let order = service.order().await;
    service.printer.finish.notify_one();
    let settle = format!("{order}/settle");
    let (status, settled) = service.call("POST", &settle, None).await;
    assert_eq!((status, &settled["cents"]), (200, &json!(1250)));
    assert!(settled["settled_by"].is_i64(), "{settled}");
    // The second finds it settled and writes no invoice: it would hang here if it did.
    assert_eq!(service.call("POST", &settle, None).await, (200, settled.clone()));
    assert_eq!(service.call("GET", &order, None).await, (200, settled));
    assert_eq!(service.call("GET", "/orders/999", None).await.0, 404);
    assert_eq!(service.call("POST", "/orders/999/settle", None).await.0, 404);
    assert_eq!(service.held().await, 0);
    service.stop().await;
}

async fn the_second_of_two_settles_is_told_that_it_is_busy(service: Service) {
    let order = service.order().await;
    let first = service.settle_and_pause(&order).await;
    let (status, busy) = service.call("POST", &format!("{order}/settle"), None).await;
    assert_eq!((status, &busy["error"]), (409, &json!("busy")), "{busy}");
    assert!(busy["message"].as_str().unwrap().contains("order:1"), "{busy}");
    service.printer.finish.notify_one();
    let (status, settled) = first.await.unwrap();
    assert_eq!(status, 200, "{settled}");
    assert_eq!(service.held().await, 0);
    service.stop().await;
}

async fn an_order_is_cancelled_unless_it_is_being_settled(service: Service) {
    let order = service.order().await;
    let settle = service.settle_and_pause(&order).await;
    let (status, busy) = service.call("DELETE", &order, None).await;
    assert_eq!((status, &busy["error"]), (409, &json!("busy")), "{busy}");
    service.printer.finish.notify_one();
    let (status, settled) = settle.await.unwrap();
    assert_eq!(status, 200, "{settled}");
    let (status, refused) = service.call("DELETE", &order, None).await;
    assert_eq!((status, &refused["error"]), (409, &json!("settled")), "{refused}");

    let order = service.order().await;
    assert_eq!(service.call("DELETE", &order, None).await, (204, Value::Null));
    assert_eq!(service.held().await, 0);
    for (method, path) in [
        ("GET", order.clone()),
        ("DELETE", order.clone()),
        ("POST", format!("{order}/settle")),
    ] {
        assert_eq!(service.call(method, &path, None).await.0, 404, "{method} {path}");
    }
    service.stop().await;
}

async fn a_client_that_goes_away_leaves_no_lock(service: Service) {
    let order = service.order().await;
    let mut client = TcpStream::connect(service.address).await.unwrap();
    let settle = request("POST", &format!("{order}/settle"), None);
    client.write_all(settle.as_bytes()).await.unwrap();
    event(&service.printer.begun, "the invoice begins").await;
    assert_eq!(service.held().await, 1);

    let start = Instant::now();
    drop(client);
    event(&service.printer.dropped, "the server drops the handler").await;
    let dropped_after = start.elapsed();
    service.until_free().await;
    eprintln!(
        "client gone: handler dropped after {dropped_after:?}, lock free after {:?}",
        start.elapsed()
    );
    assert_eq!(
        service.call("GET", &order, None).await.1["settled_by"],
        Value::Null
    );

    // The next client gets in.
    let next = service.settle_and_pause(&order).await;
    service.printer.finish.notify_one();
    assert_eq!(next.await.unwrap().0, 200);
    service.stop().await;
}

async fn a_stop_lets_a_settle_finish_and_leaves_no_lock(mut service: Service) {
    let order = service.order().await;
    let settle = service.settle_and_pause(&order).await;
    let shop = Arc::clone(&service.shop);
    drop(service.quit.take());
    // The manager refuses new locks once the stop has reached it.
    let refused = async {
        while !shop
            .settle(999)
            .await
            .unwrap_err()
            .to_string()
            .contains("shut down")
        {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, refused).await.unwrap();
    service.printer.finish.notify_one();
    let (status, settled) = settle.await.unwrap();
    assert_eq!(status, 200, "{settled}");
    service.stop().await;
}

async fn a_lost_lock_settles_nothing_and_says_so(service: Service) {
    let order = service.order().await;
    let settle = service.settle_and_pause(&order).await;
    let key = order.replace("/orders/", "order:");
    assert!(service.shop.locks().admin().force_release(&key).await.unwrap());
    // The invoice is written, but the fence check finds the lease gone.
    service.printer.finish.notify_one();
    let (status, lost) = settle.await.unwrap();
    assert_eq!((status, &lost["error"]), (500, &json!("lost")), "{lost}");
    assert_eq!(
        service.call("GET", &order, None).await.1["settled_by"],
        Value::Null
    );
    service.stop().await;
}

#[tokio::test]
async fn a_database_that_is_down_is_neither_busy_nor_settled() {
    let Some(place) = Place::postgres().await else {
        return;
    };
    let url = place.url();
    let options: PgConnectOptions = url.parse().unwrap();
    let target = format!("{}:{}", options.get_host(), options.get_port());
    let proxy = Proxy::open(target.clone()).await;
    let service = Service::start(&url.replace(&target, &proxy.address.to_string())).await;
    let order = service.order().await;

    proxy.close().await;
    for (method, path) in [("POST", format!("{order}/settle")), ("GET", order)] {
        let (status, down) = service.call(method, &path, None).await;
        assert_eq!(
            (status, &down["error"]),
            (503, &json!("database_unavailable")),
            "{down}"
        );
    }
    assert_eq!(
        service.printer.begun.available_permits(),
        0,
        "no invoice was written"
    );
    service.server.abort();
    place.remove().await;
}
