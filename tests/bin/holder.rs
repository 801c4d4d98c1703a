//! Takes a lock and then ends as it is told: `holder <ending> <url> <table> <key>`.
//!
//! `sleep` stays inside, with a ttl of five seconds, until it is killed; `panic` lets a panic of the body
//! unwind out of `main`, with a ttl of 30 seconds.

use std::time::Duration;

use dblock::{LockManager, LockOptions, StoreSource};

/// The store's pool is only read for its options, so it is never connected.
fn source(url: &str) -> StoreSource {
    if url.starts_with("postgres") {
        sqlx::PgPool::connect_lazy(url).expect("a URL").into()
    } else if url.starts_with("mysql") {
        sqlx::MySqlPool::connect_lazy(url).expect("a URL").into()
    } else {
        sqlx::SqlitePool::connect_lazy(url).expect("a URL").into()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let [_, ending, url, table, key] = std::env::args()
        .collect::<Vec<_>>()
        .try_into()
        .expect("arguments");
    let locks = LockManager::builder(source(&url)).table(table);
    let locks = locks.build().await.expect("a manager");
    let ttl = if ending == "sleep" { 5 } else { 30 };
    let options = LockOptions::new().ttl(Duration::from_secs(ttl));
    let result = locks
        .lock(key)
        .options(&options)
        .run(async {
            println!("inside");
            assert_ne!(ending, "panic", "as asked");
            std::future::pending::<()>().await;
        })
        .await;
    result.expect("the lock was free");
}
