//! `cargo run -p dblock-axum --example idempotency`: a service that takes payments, each of them once, on a
//! SQLite file. Start it twice, with two ports, to see two nodes share their keys:
//!
//! ```text
//! cargo run -p dblock-axum --example idempotency                              # or with an address: -- 127.0.0.1:3001
//! PAY='curl -i -H x-api-key:alice -H idempotency-key:1 -H content-type:application/json localhost:3000/payments'
//! $PAY -d '{"cents": 1250}'                                                # 201, and the payment
//! $PAY -d '{"cents": 1250}'                                                # the same answer, and no second payment
//! $PAY -d '{"cents": 9999}'                                                # 422: another request with that key
//! curl localhost:3000/payments                                             # one payment
//! ```
//!
//! Payment and answer are written in one transaction. So each request has exactly one effect, whatever
//! crashes.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use dblock::{LockError, LockManager, OnCrash, RunOptions};
use dblock_axum::{IdempotencyLayer, IdempotentRun, LockProblem, Scope};
use sqlx::SqlitePool;
use tokio::net::TcpListener;

/// How long an answer is given again. Clients must know it.
const REMEMBER: Duration = Duration::from_hours(24);

/// How long requests may go on when the service stops.
const GRACE: Duration = Duration::from_secs(10);

/// The account that pays, as the authentication has found out.
#[derive(Debug, Clone)]
struct Account(String);

#[derive(Debug, serde::Deserialize)]
struct NewPayment {
    cents: u32,
}

#[derive(Debug, serde::Serialize)]
struct Payment {
    id: i64,
    account: String,
    cents: i64,
}

impl From<(i64, String, i64)> for Payment {
    fn from((id, account, cents): (i64, String, i64)) -> Self {
        Self { id, account, cents }
    }
}

/// Why a payment failed.
enum Failure {
    Lock(LockError),
    Database(sqlx::Error),
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        match self {
            Self::Lock(error) => LockProblem(error).into_response(),
            Self::Database(error) => {
                eprintln!("a payment failed: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

async fn pay(
    State(pool): State<SqlitePool>,
    Extension(Account(account)): Extension<Account>,
    run: IdempotentRun,
    Json(new): Json<NewPayment>,
) -> Result<Response, Failure> {
    let mut tx = dblock::begin(&pool).await?;
    let sql = "INSERT INTO payments (account, cents) VALUES ($1, $2) RETURNING id, account, cents";
    let insert = sqlx::query_as::<_, (i64, String, i64)>(sql)
        .bind(account)
        .bind(new.cents);
    let payment = Payment::from(insert.fetch_one(&mut *tx).await?);
    let answer = run
        .complete_in(&mut tx, (StatusCode::CREATED, Json(payment)))
        .await?;
    tx.commit().await?;
    Ok(answer)
}

async fn list(State(pool): State<SqlitePool>) -> Result<Json<Vec<Payment>>, Failure> {
    let sql = "SELECT id, account, cents FROM payments ORDER BY id";
    let rows: Vec<(i64, String, i64)> = sqlx::query_as(sql).fetch_all(&pool).await?;
    Ok(Json(rows.into_iter().map(Payment::from).collect()))
}

/// Stands in for a real authentication: takes the word of the client.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let name = request
        .headers()
        .get("x-api-key")
        .and_then(|key| key.to_str().ok());
    match name.map(|name| Account(name.to_owned())) {
        Some(account) => {
            request.extensions_mut().insert(account);
            next.run(request).await
        }
        None if request.method().is_safe() => next.run(request).await,
        None => StatusCode::UNAUTHORIZED.into_response(),
    }
}

/// Completes at Ctrl-C or SIGTERM, or at once where this process cannot listen for signals.
async fn asked_to_end() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let Ok(mut terminate) = signal(SignalKind::terminate()) else {
            return;
        };
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    let _ = interrupt.await;
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let file = std::env::temp_dir().join("dblock-example-payments.db");
    let pool = SqlitePool::connect(&format!("sqlite://{}?mode=rwc", file.display())).await?;
    let table = "CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL)";
    sqlx::raw_sql(table).execute(&pool).await?;
    let locks = LockManager::builder(&pool).auto_migrate(true).build().await?;

    let options = RunOptions::new(REMEMBER, OnCrash::CompleteIn);
    let scope = Scope::caller(|request| {
        request
            .extensions
            .get::<Account>()
            .map(|account| account.0.clone())
    });
    let router = Router::new()
        .route("/payments", post(pay).get(list))
        .with_state(pool)
        .layer(IdempotencyLayer::new(locks.clone(), options, scope))
        .layer(middleware::from_fn(authenticate));

    let listener = TcpListener::bind(&address).await?;
    println!(
        "payments are in {}; listening on http://{}; Ctrl-C or SIGTERM stops",
        file.display(),
        listener.local_addr()?
    );
    let server = axum::serve(listener, router).with_graceful_shutdown(asked_to_end());
    server.await?;
    // Also waits for requests whose clients have gone away.
    locks.shutdown(GRACE).await;
    Ok(())
}
