//! Two MariaDB servers that change places: the old primary becomes read-only, and its connections stay.

use dblock::LockManager;
use dblock_servers::Server;
use dblock_tests::line::Database;
use dblock_tests::own_server;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};

use crate::{moves, process, waiting};

async fn run(server: &Server, statements: &str) {
    let mut admin = MySqlConnection::connect(server.url()).await.unwrap();
    let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
    statements.execute(&mut admin).await.unwrap();
}

/// A server for a user whom `read_only` concerns, with the tables.
async fn server() -> Option<(Server, String)> {
    let server = own_server::start(Database::MySql).await?;
    LockManager::builder_for_url(server.url())
        .unwrap()
        .build_lazy()
        .unwrap()
        .admin()
        .migrate()
        .await
        .unwrap();
    let url = own_server::app_of(&server).await;
    Some((server, url))
}

#[tokio::test]
async fn a_server_that_becomes_read_only_is_left() {
    moves::note();
    let (Some((one, url_of_one)), Some((two, url_of_two))) = tokio::join!(server(), server()) else {
        return;
    };
    run(&two, "SET GLOBAL read_only = 1").await;
    let address = url_of_two.split(['@', '/']).nth(3).unwrap();
    let several = url_of_one.replace("/dblock", &format!(",{address}/dblock"));
    let locks = process(&several).await;
    locks
        .lock("key")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    run(&one, "SET GLOBAL read_only = 1").await;
    let waits = waiting(&locks, "waited for").await;
    let refused = locks.lock("key").acquire().await.unwrap_err();
    assert!(refused.is_store() && refused.is_retryable(), "{refused:?}");
    assert_eq!(moves::to(&url_of_two), 0);
    run(&two, "SET GLOBAL read_only = 0").await;
    waits.await.unwrap().release().await.unwrap();
    assert_eq!(moves::to(&url_of_two), 1);
}
