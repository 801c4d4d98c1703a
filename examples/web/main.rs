//! `cargo run --example web`: a small web service with an annotated method, on PostgreSQL from
//! `DATABASE_URL` or else on a SQLite file. Start it twice, with two ports, to see two nodes exclude each
//! other:
//!
//! ```text
//! cargo run --example web                                   # or with an address: -- 127.0.0.1:3001
//! curl -d '{"cents": 1250}' -H 'content-type: application/json' localhost:3000/orders
//! curl -X POST localhost:3000/orders/1/settle & curl -X POST localhost:3000/orders/1/settle
//! ```
//!
//! The service itself is in `web.rs` and its modules.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use dblock_examples::stop;
use dblock_examples::web::database::Database;
use dblock_examples::web::shop::Shop;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).init();

    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let url = std::env::var("DATABASE_URL").unwrap_or_else(|_| {
        let file = std::env::temp_dir().join("dblock-example-web.db");
        println!("DATABASE_URL is not set: keeping orders in {}", file.display());
        format!("sqlite://{}", file.display())
    });
    // Not printed: a URL may hold a password.
    let orders = Database::connect(&url)
        .await
        .context("cannot open the database of DATABASE_URL, or the SQLite file if it is not set")?;
    // Invoices that take their time.
    let invoice = Arc::new(|order, cents| {
        let pause = tokio::time::sleep(Duration::from_secs(3));
        Box::pin(async move {
            tracing::info!(order, cents, "writing the invoice");
            pause.await;
        }) as _
    });
    let shop = Shop::open(orders, invoice)
        .await
        .context("cannot open the shop")?;

    let listener = TcpListener::bind(&address)
        .await
        .with_context(|| format!("cannot listen on {address}"))?;
    println!(
        "listening on http://{}; Ctrl-C or SIGTERM stops",
        listener.local_addr()?
    );
    let quit = async {
        if let Err(error) = stop::signal().await {
            tracing::error!(%error, "cannot listen for signals; stopping");
        }
        println!("stopping: requests that hold a lock may finish");
    };
    dblock_examples::web::serve(listener, Arc::new(shop), quit)
        .await
        .context("the server failed")
}
