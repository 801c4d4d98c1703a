//! Two nodes over real sockets: who is told what, and that a client that goes away leaves no lock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use dblock::LockManager;
use dblock::store::MemoryStore;
use dblock_example_tonic::shop::orders_client::OrdersClient;
use dblock_example_tonic::{Invoice, SettleRequest, serve, status};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

/// A printer that the test holds back.
struct Printer {
    begun: Semaphore,
    finish: Semaphore,
}

impl Printer {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Semaphore::new(0),
            finish: Semaphore::new(0),
        })
    }

    fn invoice(self: &Arc<Self>) -> Invoice {
        let printer = Arc::clone(self);
        Arc::new(move |_order| {
            let printer = Arc::clone(&printer);
            Box::pin(async move {
                printer.begun.add_permits(1);
                printer.finish.acquire().await.unwrap().forget();
            })
        })
    }

    async fn until_begun(&self) {
        self.begun.acquire().await.unwrap().forget();
    }
}

/// Starts a node with its manager, and connects a client to it.
async fn node(locks: LockManager, invoice: Invoice) -> OrdersClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(locks, invoice, TcpIncoming::from(listener), pending()));
    let endpoint = Endpoint::try_from(format!("http://{address}")).unwrap();
    OrdersClient::new(endpoint.connect().await.unwrap())
}

/// Clients of two nodes that share a store and a printer.
async fn two_nodes(printer: &Arc<Printer>) -> [OrdersClient<Channel>; 2] {
    let store = MemoryStore::new();
    let start = async || {
        let locks = LockManager::builder(store.clone()).build().await.unwrap();
        node(locks, printer.invoice()).await
    };
    [start().await, start().await]
}

fn order(order_id: u64) -> SettleRequest {
    SettleRequest { order_id }
}

#[tokio::test]
async fn one_node_settles_and_the_other_is_told_that_it_is_busy() {
    let printer = Printer::new();
    let mut clients = two_nodes(&printer).await;
    let mut first = clients[0].clone();
    let settle = tokio::spawn(async move { first.settle(order(7)).await });
    printer.until_begun().await;
    let busy = clients[1].settle(order(7)).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted);
    assert!(
        !busy.message().contains("order:7"),
        "keys are not for clients: {busy}"
    );
    printer.finish.add_permits(1);
    let first = settle.await.unwrap().unwrap().into_inner();

    // Now the other one can, with a larger token.
    printer.finish.add_permits(1);
    let second = clients[1].settle(order(7)).await.unwrap().into_inner();
    assert!(second.settled_by > first.settled_by);
}

/// A call for a tenant, whom its metadata names.
fn of_tenant(tenant: &'static str, order_id: u64) -> Request<SettleRequest> {
    let mut request = Request::new(order(order_id));
    request.metadata_mut().insert("tenant", tenant.parse().unwrap());
    // Only a test that has failed waits for so long.
    request.set_timeout(Duration::from_secs(10));
    request
}

#[tokio::test]
async fn a_tenant_has_one_call_at_a_time_whatever_its_order() {
    let printer = Printer::new();
    let mut clients = two_nodes(&printer).await;
    let mut first = clients[0].clone();
    let settle = tokio::spawn(async move { first.settle(of_tenant("7", 1)).await });
    printer.until_begun().await;
    let busy = clients[1].settle(of_tenant("7", 2)).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted);
    assert!(!busy.message().contains("tenant:7"), "{busy}");
    printer.finish.add_permits(2);
    clients[1].settle(of_tenant("8", 3)).await.unwrap();
    settle.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_no_lock() {
    let (store, printer) = (MemoryStore::new(), Printer::new());
    let locks = LockManager::builder(store).build().await.unwrap();
    let mut client = node(locks.clone(), printer.invoice()).await;
    let settle = tokio::spawn(async move { client.settle(order(7)).await });
    printer.until_begun().await;
    assert!(locks.admin().is_locked("order:7").await.unwrap());
    settle.abort();
    let invoice = locks.lock("order:7").wait(Duration::from_secs(10));
    invoice.acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_node_that_is_stopped_ends_its_calls_in_order() {
    let (locks, printer) = (LockManager::connect("memory:").await.unwrap(), Printer::new());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async { stopped.await.unwrap() };
    let node = serve(
        locks.clone(),
        printer.invoice(),
        TcpIncoming::from(listener),
        stopped,
    );
    let node = tokio::spawn(node);
    let mut client = OrdersClient::new(Endpoint::try_from(address).unwrap().connect().await.unwrap());
    let settle = tokio::spawn(async move { client.settle(order(7)).await });
    printer.until_begun().await;
    stop.send(()).unwrap();
    printer.finish.add_permits(1);
    settle.await.unwrap().unwrap();
    node.await.unwrap().unwrap();
    let late = locks.lock("order:7").acquire().await.unwrap_err();
    assert!(late.is_shutdown(), "{late}");
}

#[tokio::test]
async fn a_stop_is_no_bug_of_the_service() {
    let locks = LockManager::connect("memory:").await.unwrap();
    locks.shutdown(Duration::ZERO).await;
    let error = locks.lock("order:7").acquire().await.unwrap_err();
    assert_eq!(status(&error).code(), Code::Unavailable);
    let error = locks.lock("").acquire().await.unwrap_err();
    assert_eq!(status(&error).code(), Code::Internal, "{error}");
}
