//! A run that may have been committed is never repeated: the answer to a commit is lost on its way.

use std::net::SocketAddr;

use dblock::optimistic::{ExpectVersion as _, RetryOptions, retry};
use dblock_tests::backend::Place;
use dblock_tests::proxy::{Proxy, Trick};
use dblock_tests::{Backend, on_every_store};
use sqlx::Executor as _;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::{PgPoolOptions, PgSslMode};

use crate::StockError;
use crate::stock::{Pool, Stock, on_pool};

on_every_store!(servers:
    a_commit_whose_answer_was_lost_is_not_run_again,
    a_connection_that_breaks_before_the_commit_is_not_run_again,
);

async fn a_commit_whose_answer_was_lost_is_not_run_again(backend: Backend) {
    breaks_at_commit(&backend, Trick::LoseReply, (999, 1)).await;
}

/// The body cannot know whether the server got the commit, and neither can the retry.
async fn a_connection_that_breaks_before_the_commit_is_not_run_again(backend: Backend) {
    breaks_at_commit(&backend, Trick::LoseRequest, (1000, 0)).await;
}

async fn breaks_at_commit(backend: &Backend, trick: Trick, left: (i64, i64)) {
    let stock = Stock::new(backend).await;
    let (proxy, through) = through_a_proxy(backend, &stock).await;
    let result = retry(RetryOptions::new(), async || {
        stock.runs.begin();
        on_pool!(through, pool => {
            let mut tx = dblock::begin(pool).await?;
            let write = stock.sql("UPDATE {stock} SET amount = amount - 1, version = version + 1 WHERE id = 1 AND version = 0");
            tx.execute(write).await?.expect_version("stock", 1, 0)?;
            proxy.look_out(trick, Box::new(|bytes| bytes.windows(6).any(|part| part == b"COMMIT")));
            tx.commit().await?;
        });
        Ok::<_, StockError>(())
    });
    let error = result.await.unwrap_err();
    assert!(
        matches!(&error, StockError::Database(error) if error.as_database_error().is_none()),
        "{error:?}"
    );
    assert_eq!((proxy.played(), stock.runs.count()), (1, 1));
    assert_eq!(stock.row(1).await, left);
    backend.execute(&format!("DROP TABLE {}", stock.table)).await;
}

/// The same table, reached through a proxy.
async fn through_a_proxy(backend: &Backend, stock: &Stock) -> (Proxy, Stock) {
    let (proxy, pool) = match backend.place() {
        Place::Postgres(pool, _) => {
            let options = (*pool.connect_options()).clone();
            let proxy = Proxy::start(SocketAddr::new([127, 0, 0, 1].into(), options.get_port()));
            let options = options
                .host("127.0.0.1")
                .port(proxy.address().port())
                .ssl_mode(PgSslMode::Disable);
            let pool = PgPoolOptions::new()
                .max_connections(1)
                .connect_with(options)
                .await;
            (proxy, Pool::Postgres(pool.unwrap()))
        }
        Place::MySql(pool, _) => {
            let options = (*pool.connect_options()).clone();
            let proxy = Proxy::start(SocketAddr::new([127, 0, 0, 1].into(), options.get_port()));
            let options = options.host("127.0.0.1").port(proxy.address().port());
            let pool = MySqlPoolOptions::new()
                .max_connections(1)
                .connect_with(options)
                .await;
            (proxy, Pool::MySql(pool.unwrap()))
        }
        Place::Sqlite(..) | Place::Memory(_) => unreachable!("servers alone"),
    };
    let through = Stock {
        pool,
        ..stock.clone()
    };
    (proxy, through)
}
