//! A running service, the printer of invoices in the test's hands, and a small HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dblock::{InspectFilter, LockManager};
use dblock_examples::web::database::Database;
use dblock_examples::web::serve;
use dblock_examples::web::shop::Shop;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Nothing here takes this long unless it hangs. The ttl is 10 s: what is free sooner was released.
pub(crate) const SOON: Duration = Duration::from_secs(5);

/// A printer of invoices in the test's hands.
#[derive(Debug)]
pub(crate) struct Printer {
    /// One permit for each invoice that has begun.
    pub(crate) begun: Semaphore,
    /// Lets one invoice finish.
    pub(crate) finish: Notify,
    /// One permit for each invoice that was dropped before it finished.
    pub(crate) dropped: Semaphore,
}

impl Printer {
    pub(crate) async fn invoice(self: Arc<Self>) {
        struct Dropped(Option<Arc<Printer>>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                if let Some(printer) = &self.0 {
                    printer.dropped.add_permits(1);
                }
            }
        }
        let mut guard = Dropped(Some(Arc::clone(&self)));
        self.begun.add_permits(1);
        self.finish.notified().await;
        guard.0 = None;
    }
}

pub(crate) async fn event(semaphore: &Semaphore, what: &str) {
    timeout(SOON, semaphore.acquire())
        .await
        .unwrap_or_else(|_| panic!("{what} within {SOON:?}"))
        .unwrap()
        .forget();
}

/// A running service.
pub(crate) struct Service {
    pub(crate) url: String,
    pub(crate) address: SocketAddr,
    pub(crate) shop: Arc<Shop>,
    pub(crate) printer: Arc<Printer>,
    pub(crate) quit: Option<oneshot::Sender<()>>,
    pub(crate) server: JoinHandle<std::io::Result<()>>,
}

impl Service {
    pub(crate) async fn start(url: &str) -> Self {
        let printer = Arc::new(Printer {
            begun: Semaphore::new(0),
            finish: Notify::new(),
            dropped: Semaphore::new(0),
        });
        let invoice = {
            let printer = Arc::clone(&printer);
            Arc::new(move |_, _| Box::pin(Arc::clone(&printer).invoice()) as _)
        };
        let orders = Database::connect(url).await.unwrap();
        let shop = Arc::new(Shop::open(orders, invoice).await.unwrap());
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
            printer,
            quit: Some(quit),
            server,
        }
    }

    pub(crate) async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        call(self.address, method, path, body).await
    }

    /// A new order; returns the path to settle it.
    pub(crate) async fn order(&self) -> String {
        let (status, order) = self.call("POST", "/orders", Some(json!({ "cents": 1250 }))).await;
        assert_eq!(status, 201, "{order}");
        format!("/orders/{}", order["id"])
    }

    /// Sends a settle in the background and waits until it is inside of the lock.
    pub(crate) async fn settle_and_pause(&self, order: &str) -> JoinHandle<(u16, Value)> {
        let (address, path) = (self.address, format!("{order}/settle"));
        let settle = tokio::spawn(async move { call(address, "POST", &path, None).await });
        event(&self.printer.begun, "the invoice begins").await;
        settle
    }

    pub(crate) async fn held(&self) -> usize {
        self.shop
            .locks()
            .admin()
            .list(InspectFilter::new())
            .await
            .unwrap()
            .len()
    }

    /// Waits until no lock is held; returns how long that took.
    pub(crate) async fn until_free(&self) -> Duration {
        let start = Instant::now();
        while self.held().await > 0 {
            assert!(start.elapsed() < SOON, "a lock is still held after {SOON:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        start.elapsed()
    }

    /// Stops the service. However it was used, no row is held then.
    pub(crate) async fn stop(mut self) {
        drop(self.quit.take());
        timeout(SOON, self.server).await.unwrap().unwrap().unwrap();
        let locks = LockManager::connect(&self.url).await.unwrap();
        let held = locks.admin().list(InspectFilter::new()).await.unwrap();
        assert!(held.is_empty(), "held after the service has stopped: {held:?}");
    }
}

pub(crate) async fn call(address: SocketAddr, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
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
    let body = if body.is_empty() { "null" } else { body };
    (status, serde_json::from_str(body).unwrap())
}

pub(crate) fn request(method: &str, path: &str, body: Option<Value>) -> String {
    let body = body.map(|body| body.to_string()).unwrap_or_default();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}
