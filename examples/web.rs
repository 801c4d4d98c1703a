//! A small web service that settles orders, each of them by one request at a time over all its nodes.
//!
//! | request | answer |
//! |---|---|
//! | `POST /orders` `{"cents": 1250}` | 201 and the order |
//! | `GET /orders/{id}` | 200 and the order, or 404 |
//! | `POST /orders/{id}/settle` | 200 and the order; 404; 409 while another request settles or cancels it |
//! | `DELETE /orders/{id}` | 204; 404; 409 when it is settled, or while another request settles or cancels it |
//!
//! 503 says that the database cannot be asked or that the service is shutting down, 500 that a lock was
//! lost while its order was being settled. A failure is JSON with `error` and `message`,
//! except that axum itself answers a request that it cannot read.
//!
//! [`shop`] has the method with the attribute, [`database`] the SQL, [`failure`] the answers.

pub mod database;
pub mod failure;
pub mod shop;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use database::Order;
use failure::Failure;
use shop::Shop;

/// How long requests that hold a lock may go on when the service stops.
const GRACE: Duration = Duration::from_secs(10);

/// The body of `POST /orders`.
#[derive(Debug, serde::Deserialize)]
struct NewOrder {
    cents: u32,
}

fn router(shop: Arc<Shop>) -> Router {
    Router::new()
        .route("/orders", post(create))
        .route("/orders/{id}", get(find).delete(cancel))
        .route("/orders/{id}/settle", post(settle))
        .with_state(shop)
}

async fn create(
    State(shop): State<Arc<Shop>>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), Failure> {
    let order = shop.create(i64::from(new.cents)).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

async fn find(State(shop): State<Arc<Shop>>, Path(id): Path<i64>) -> Result<Json<Order>, Failure> {
    Ok(Json(shop.find(id).await?))
}

/// When the client goes away, the server drops this future, and with it the lock.
async fn settle(State(shop): State<Arc<Shop>>, Path(id): Path<i64>) -> Result<Json<Order>, Failure> {
    Ok(Json(shop.settle(id).await?))
}

/// Here too: with the lock the transaction is rolled back.
async fn cancel(State(shop): State<Arc<Shop>>, Path(id): Path<i64>) -> Result<StatusCode, Failure> {
    shop.cancel(id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Answers requests until `quit` completes. Then it takes no new ones, lets those that hold a lock finish
/// within a grace, and leaves no lock behind.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    shop: Arc<Shop>,
    quit: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let locks = shop.locks().clone();
    let (stopping, stopped) = oneshot::channel::<()>();
    let server = axum::serve(listener, router(shop)).with_graceful_shutdown(async {
        let _ = stopped.await;
    });
    let shutdown = async {
        quit.await;
        drop(stopping);
        // A request that still runs after the grace loses its lock and is answered with 500, so the server
        // can end.
        locks.shutdown(GRACE).await;
        Ok(())
    };
    tokio::try_join!(server.into_future(), shutdown).map(|_| ())
}
