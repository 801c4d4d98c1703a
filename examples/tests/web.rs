//! The web example over real sockets: who is told what, and that no lock is left when a client goes away.
//!
//! On SQLite always, and on PostgreSQL when `DBLOCK_TEST_POSTGRES_URL` is set. Without it that half is left
//! out, loudly, or fails when `DBLOCK_TEST_REQUIRE_SERVERS=1`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::{InspectFilter, LockManager};
use dblock_examples::web::database::Database;
use dblock_examples::web::serve;
use dblock_examples::web::shop::Shop;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;

/// Nothing here takes this long unless it hangs. The ttl is 10 s: what is free sooner was released.
const SOON: Duration = Duration::from_secs(5);

/// A payment provider in the test's hands.
#[derive(Debug)]
struct Provider {
    /// One permit for each charge that has begun.
    begun: Semaphore,
    /// Lets one charge finish.
    finish: Notify,
    /// One permit for each charge that was dropped before it finished.
    dropped: Semaphore,
}

impl Provider {
    async fn charge(self: Arc<Self>) {
        struct Dropped(Option<Arc<Provider>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                if let Some(provider) = &self.0 {
                    provider.dropped.add_permits(1);
                }
            }
        }
        let mut guard = Dropped(Some(Arc::clone(&self)));
        self.begun.add_permits(1);
        self.finish.notified().await;
        guard.0 = None;
    }
}

async fn event(semaphore: &Semaphore, what: &str) {
    timeout(SOON, semaphore.acquire())
        .await
        .unwrap_or_else(|_| panic!("{what} within {SOON:?}"))
        .unwrap()
        .forget();
}

/// A running service.
struct Service {
    url: String,
    address: SocketAddr,
    shop: Arc<Shop>,
    provider: Arc<Provider>,
    quit: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Service {
    async fn start(url: &str) -> Self {
        let provider = Arc::new(Provider {
            begun: Semaphore::new(0),
            finish: Notify::new(),
            dropped: Semaphore::new(0),
        });
        let charge = {
            let provider = Arc::clone(&provider);
            Arc::new(move |_, _| Box::pin(Arc::clone(&provider).charge()) as _)
        };
        let orders = Database::connect(url).await.unwrap();
        let shop = Arc::new(Shop::open(orders, charge).await.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (quit, quitting) = oneshot::channel();
        let server = tokio::spawn(serve(listener, Arc::clone(&shop), async {
            let _ = quitting.await;
        }));
        Self {
            url: url.to_owned(),
            address,
            shop,
            provider,
            quit: Some(quit),
            server,
        }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        call(self.address, method, path, body).await
    }

    /// A new order; returns the path to settle it.
    async fn order(&self) -> String {
        let (status, order) = self.call("POST", "/orders", Some(json!({ "cents": 1250 }))).await;
        assert_eq!(status, 201, "{order}");
        format!("/orders/{}", order["id"])
    }

    /// Sends a settle in the background and waits until it is inside of the lock.
    async fn settle_and_pause(&self, order: &str) -> JoinHandle<(u16, Value)> {
        let (address, path) = (self.address, format!("{order}/settle"));
        let settle = tokio::spawn(async move { call(address, "POST", &path, None).await });
        event(&self.provider.begun, "the charge begins").await;
        settle
    }

    async fn held(&self) -> usize {
        self.shop
            .locks()
            .inspect(InspectFilter::new())
            .await
            .unwrap()
            .len()
    }

    /// Waits until no lock is held; returns how long that took.
    async fn until_free(&self) -> Duration {
        let start = Instant::now();
        while self.held().await > 0 {
            assert!(start.elapsed() < SOON, "a lock is still held after {SOON:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    /// Stops the service. However it was used, no row is held then.
    async fn stop(mut self) {
        drop(self.quit.take());
        timeout(SOON, self.server).await.unwrap().unwrap().unwrap();
        let locks = LockManager::connect(&self.url).await.unwrap();
        let held = locks.inspect(InspectFilter::new()).await.unwrap();
        assert!(held.is_empty(), "held after the service has stopped: {held:?}");
    }
}

async fn call(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(request(method, path, body).as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer))
        .await
        .unwrap_or_else(|_| panic!("no answer to {method} {path}"))
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

fn request(method: &str, path: &str, body: Option<Value>) -> String {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// A database of its own on a server, or a file.
enum Place {
    Sqlite(TempDir),
    Postgres { server: String, name: String },
}

impl Place {
    fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    /// `None` when no server is given.
    async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("DBLOCK_TEST_POSTGRES_URL") else {
            assert!(
                std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").as_deref() != Ok("1"),
                "DBLOCK_TEST_REQUIRE_SERVERS=1, but DBLOCK_TEST_POSTGRES_URL is not set"
            );
            // Not `eprintln!`, which the test runner keeps to itself.
            let _ = writeln!(
                std::io::stderr(),
                "LEFT OUT: the web example on PostgreSQL, because DBLOCK_TEST_POSTGRES_URL is not set"
            );
            return None;
        };
        let name = format!("web_{}", uuid::Uuid::now_v7().simple());
        run(&server, format!("CREATE DATABASE {name}")).await;
        Some(Self::Postgres { server, name })
    }

    fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite://{}", folder.path().join("web.db").display()),
            Self::Postgres { server, name } => {
                let (base, _) = server.rsplit_once('/').unwrap();
                format!("{base}/{name}")
            }
        }
    }

    async fn remove(self) {
        if let Self::Postgres { server, name } = self {
            run(&server, format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }
}

async fn run(server: &str, sql: String) {
    let mut connection = PgConnection::connect(server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
}

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
    a_client_that_goes_away_leaves_no_lock,
    a_stop_lets_a_settle_finish_and_leaves_no_lock,
    a_lost_lock_writes_nothing_and_says_so,
);

async fn an_order_is_settled_once(service: Service) {
    let order = service.order().await;
    service.provider.finish.notify_one();
    let settle = format!("{order}/settle");
    let (status, settled) = service.call("POST", &settle, None).await;
    assert_eq!((status, &settled["cents"]), (200, &json!(1250)));
    assert!(settled["settled_by"].is_i64(), "{settled}");
    // The second finds it settled and charges nothing: it would hang here if it did.
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
    service.provider.finish.notify_one();
    let (status, settled) = first.await.unwrap();
    assert_eq!(status, 200, "{settled}");
    assert_eq!(service.held().await, 0);
    service.stop().await;
}

async fn a_client_that_goes_away_leaves_no_lock(service: Service) {
    let order = service.order().await;
    let mut client = TcpStream::connect(service.address).await.unwrap();
    let settle = request("POST", &format!("{order}/settle"), None);
    client.write_all(settle.as_bytes()).await.unwrap();
    event(&service.provider.begun, "the charge begins").await;
    assert_eq!(service.held().await, 1);

    let start = Instant::now();
    drop(client);
    event(&service.provider.dropped, "the server drops the handler").await;
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
    service.provider.finish.notify_one();
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
    service.provider.finish.notify_one();
    let (status, settled) = settle.await.unwrap();
    assert_eq!(status, 200, "{settled}");
    service.stop().await;
}

async fn a_lost_lock_writes_nothing_and_says_so(service: Service) {
    let order = service.order().await;
    let settle = service.settle_and_pause(&order).await;
    let key = order.replace("/orders/", "order:");
    assert!(service.shop.locks().force_release(&key).await.unwrap());
    // The charge goes through, but the fence check finds the lease gone.
    service.provider.finish.notify_one();
    let (status, lost) = settle.await.unwrap();
    assert_eq!((status, &lost["error"]), (500, &json!("lost")), "{lost}");
    assert_eq!(
        service.call("GET", &order, None).await.1["settled_by"],
        Value::Null
    );
    service.stop().await;
}

/// A way to a database server that can be closed.
struct Proxy {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    async fn open(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            // Dropped with the task: then the connections break and nobody listens.
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = TcpStream::connect(&target).await.unwrap();
                connections.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        });
        Self { address, task }
    }

    async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
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
        service.provider.begun.available_permits(),
        0,
        "nothing was charged"
    );
    service.server.abort();
    place.remove().await;
}
