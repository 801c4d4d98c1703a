//! A gRPC service whose method runs under a lock, with tonic, and a layer around it that locks what the metadata
//! names. `cargo test -p dblock-example-tonic` runs it on two nodes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dblock::{LockError, LockManager, distributed_lock};
use dblock_tower::LockLayer;
use futures_util::future::BoxFuture;
use shop::orders_server::OrdersServer;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// The code that tonic makes of the service: the trait and the server in `orders_server`, the client in
/// `orders_client`.
#[allow(
    missing_debug_implementations,
    unreachable_pub,
    clippy::pedantic,
    reason = "generated"
)]
pub mod shop {
    include!(concat!(env!("OUT_DIR"), "/shop.Orders.rs"));
}

/// Asks for an order to be settled.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettleRequest {
    /// The order's number.
    #[prost(uint64, tag = "1")]
    pub order_id: u64,
}

/// The order is settled.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SettleReply {
    /// The fence token under which it was.
    #[prost(int64, tag = "1")]
    pub settled_by: i64,
}

/// Writes the invoice of an order; a second one replaces the first. What must not happen twice, such as taking
/// the money, needs `run_once` instead of a lock.
pub type Invoice = Arc<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

/// The service.
pub struct Orders {
    locks: LockManager,
    invoice: Invoice,
}

impl Orders {
    /// A service that takes its locks from `locks`.
    pub fn new(locks: LockManager, invoice: Invoice) -> Self {
        Self { locks, invoice }
    }
}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders")
            .field("locks", &self.locks)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl shop::orders_server::Orders for Orders {
    /// One call at a time settles an order, over all nodes. When the client goes away, tonic drops the call,
    /// and the lock is released.
    #[distributed_lock(
        key = "order:{request.get_ref().order_id}",
        manager = self.locks,
        on_error = |error| Err(status(&error)),
    )]
    async fn settle(&self, request: Request<SettleRequest>) -> Result<Response<SettleReply>, Status> {
        (self.invoice)(request.into_inner().order_id).await;
        let lock = dblock::current().ok_or_else(|| Status::internal("the attribute is gone"))?;
        Ok(Response::new(SettleReply {
            settled_by: lock.fence_token(),
        }))
    }
}

/// Serves the orders, one call at a time for each tenant, over all nodes and methods. The lock is taken before
/// tonic reads the message. A call that names no tenant runs without this lock.
///
/// When `stop` is done, such as at SIGTERM, no call comes in any more, and the locks end when those that run have ended.
///
/// # Errors
/// When the server cannot go on.
pub async fn serve(
    locks: LockManager,
    invoice: Invoice,
    incoming: TcpIncoming,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let tenants = LockLayer::new(
        locks.clone(),
        |request: &http::Request<Body>| {
            // In your service: what a layer around this one has read and checked.
            let tenant = request.headers().get("tenant")?.to_str().ok()?;
            Some(format!("tenant:{tenant}"))
        },
        |error| Ok(status(&error).into_http()),
    );
    let orders = OrdersServer::new(Orders::new(locks.clone(), invoice));
    let server = Server::builder().layer(tenants).add_service(orders);
    let ended = server.serve_with_incoming_shutdown(incoming, stop).await;
    locks.shutdown(Duration::from_secs(5)).await;
    ended
}

/// The status that tells a client of a lock that failed. The cause is for the log.
pub fn status(error: &LockError) -> Status {
    if error.is_busy() {
        return Status::aborted("another call is working on this; try again soon");
    }
    tracing::error!(%error, "call failed");
    if error.is_lost() {
        Status::aborted("the lock was lost before the work was done; look, then try again")
    } else if error.is_retryable() || error.is_shutdown() {
        Status::unavailable("locks cannot be taken now; try again later")
    } else {
        Status::internal("something went wrong; the log of the service says what")
    }
}
