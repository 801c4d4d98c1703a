//! Three nodes of MariaDB with Galera. Each takes writes, and learns a moment later what the others have
//! committed.

use std::time::Duration;

use dblock::LockOptions;
use dblock::store::{MySqlStore, Store};
use dblock_servers::{Galera, Server};
use dblock_tests::own_server;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection};
use tokio::time::{sleep, timeout};

use crate::{LONG, moves, patient, process};

/// One cluster for all: it takes long to start.
#[tokio::test]
async fn nodes_of_galera_grant_once_and_forget_nothing() {
    moves::note();
    let Some(mut galera) = own_server::galera().await else {
        return;
    };
    nodes_make_the_tables_side_by_side(&galera).await;
    an_acquire_that_another_node_overtook_is_no_grant(&galera).await;
    a_lease_is_known_on_the_node_that_is_used_next(&mut galera).await;
}

/// The lock that lets one migration run at a time is known to its own node only.
async fn nodes_make_the_tables_side_by_side(galera: &Galera) {
    for table in ["distributed_lock", "second", "third"] {
        let stores = galera
            .nodes
            .each_ref()
            .map(|node| MySqlStore::open(node.url(), table).unwrap());
        let [one, two, three] = &stores;
        let (one, two, three) = tokio::join!(one.migrate(), two.migrate(), three.migrate());
        one.and(two).and(three).unwrap();
        for store in stores {
            store.check_schema().await.unwrap();
        }
    }
}

/// Both nodes find the row free and write it. One of the two is refused when it commits.
async fn an_acquire_that_another_node_overtook_is_no_grant(galera: &Galera) {
    let (first, second) = (&galera.nodes[0], &galera.nodes[1]);
    let locks = process(first.url()).await;
    let now = LockOptions::new;
    for key in ["free", "free too", "free as well"] {
        locks.acquire(key, now()).await.unwrap().release().await.unwrap();
    }
    let (free, new) = (process(second.url()).await, process(second.url()).await);
    let several = process(second.url()).await;
    // They have a connection.
    for locks in [&free, &new, &several] {
        locks
            .acquire("warm", patient())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let refused_before = refused(second).await;
    let block = BlockedCommits::on(second).await;
    let owners = [
        locks.acquire("free", now()).await.unwrap(),
        locks.acquire("new", now()).await.unwrap(),
        locks.acquire("free too", now()).await.unwrap(),
    ];
    let asked = tokio::spawn(async move {
        tokio::join!(
            free.try_acquire("free", now()),
            new.try_acquire("new", now()),
            several.try_acquire_all(["free too", "free as well"], now())
        )
    });
    block.until_there_wait(3).await;
    block.end().await;
    let (free, new, several) = asked.await.unwrap();
    for granted in [
        free.map(|guard| guard.is_some()),
        new.map(|guard| guard.is_some()),
        several.map(|guard| guard.is_some()),
    ] {
        // On a machine so busy that the answer did not come in time, an error is as good.
        match granted {
            Ok(granted) => assert!(!granted),
            Err(error) => assert!(error.is_retryable(), "{error:?}"),
        }
    }
    assert!(refused(second).await >= refused_before + 3);
    for owner in owners {
        assert!(!owner.is_lost());
        owner.release().await.unwrap();
    }
}

/// The second node has not carried out yet what the first one has granted, when the first one ends.
async fn a_lease_is_known_on_the_node_that_is_used_next(galera: &mut Galera) {
    let locks = process(&galera.url(0)).await;
    locks
        .acquire("warm", patient())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let block = BlockedCommits::on(&galera.nodes[1]).await;
    let third = galera.nodes[2].url().to_owned();
    let before = moves::to(&third);
    let first = &mut galera.nodes[0];
    let held = locks.with("held", patient().ttl(LONG), async {
        first.stop_at_once();
        // The row counts the holds.
        locks
            .acquire("held", patient())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    });
    held.await.unwrap();
    assert_eq!(
        moves::to(&third),
        before + 1,
        "it uses the node that has everything"
    );
    block.end().await;
    // So does a caller who waits.
    locks
        .acquire("held", patient())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// A node on which nothing is committed, neither its own nor what others have committed.
struct BlockedCommits {
    session: MySqlConnection,
    node: String,
}

impl BlockedCommits {
    async fn on(node: &Server) -> Self {
        let node = node.url().to_owned();
        let mut session = MySqlConnection::connect(&node).await.unwrap();
        run(&mut session, "BACKUP STAGE START").await;
        run(&mut session, "BACKUP STAGE BLOCK_COMMIT").await;
        Self { session, node }
    }

    /// Waits until so many sessions of clients wait for their commit.
    async fn until_there_wait(&self, sessions: i64) {
        let mut admin = MySqlConnection::connect(&self.node).await.unwrap();
        let sql = "SELECT COUNT(*) FROM information_schema.processlist \
                   WHERE state = 'Waiting for certification' AND user = 'root'";
        let there_wait = async {
            while sqlx::query_scalar::<_, i64>(sql)
                .fetch_one(&mut admin)
                .await
                .unwrap()
                < sessions
            {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(LONG, there_wait).await.expect("they wait");
    }

    async fn end(mut self) {
        run(&mut self.session, "BACKUP STAGE END").await;
    }
}

/// How many transactions of the node were undone because another node was faster.
async fn refused(node: &Server) -> i64 {
    let mut admin = MySqlConnection::connect(node.url()).await.unwrap();
    let sql = "SELECT SUM(CAST(variable_value AS SIGNED)) FROM information_schema.global_status \
               WHERE variable_name IN ('wsrep_local_cert_failures', 'wsrep_local_bf_aborts')";
    let sum = format!("SELECT CAST(({sql}) AS SIGNED)");
    sqlx::query_scalar(AssertSqlSafe(sum))
        .fetch_one(&mut admin)
        .await
        .unwrap()
}

async fn run(session: &mut MySqlConnection, sql: &'static str) {
    sqlx::raw_sql(sql).execute(session).await.unwrap();
}
