//! Three nodes of MariaDB with Galera. Each takes writes, and learns a moment later what the others have
//! committed.

use std::time::Duration;

use dblock::store::{MySqlStore, Store};
use dblock::{LockError, LockManager, LockOptions};
use dblock_servers::{Galera, Server};
use dblock_tests::own_server;
use dblock_tests::proxy::Proxy;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, MySqlPool};
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
    all_processes_use_one_node(&galera).await;
    nothing_follows_a_write_in_its_message(&galera).await;
    an_acquire_that_another_node_overtook_is_no_grant(&galera).await;
    a_transaction_has_a_lease(&galera).await;
    a_lease_is_known_on_the_node_that_is_used_next(&mut galera).await;
}

/// A row that it locks keeps nobody out on another node.
async fn a_transaction_has_a_lease(galera: &Galera) {
    let [first, second, _] = &galera.nodes;
    let (locks, other) = (process(first.url()).await, process(second.url()).await);
    let free = locks.lock("taken").options(&patient()).acquire().await.unwrap();
    free.release().await.unwrap();
    let pool = MySqlPool::connect(first.url()).await.unwrap();
    let body = locks
        .lock("taken")
        .options(&patient())
        .transaction(&pool, async |_| {
            assert!(other.lock("taken").try_acquire().await?.is_none());
            let token = dblock::current().unwrap().fence_token();
            // A node that only reads applies what another one wrote a moment later.
            while other.admin().get("taken").await?.map(|lock| lock.fence_token) != Some(token) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, LockError>(())
        });
    body.await.unwrap();
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

/// A node that undoes a transaction between two statements of one message carries out the rest of the message
/// outside of it, and answers its COMMIT as a success.
async fn nothing_follows_a_write_in_its_message(galera: &Galera) {
    let address = galera.nodes[0].address();
    let line = Proxy::start(address.parse().unwrap());
    let ends = [";COMMIT", "SKIP LOCKED;"].map(str::as_bytes);
    let has = |bytes: &[u8], end: &[u8]| bytes.windows(end.len()).any(|part| part == end);
    line.refuse(Box::new(move |bytes| ends.iter().any(|end| has(bytes, end))));
    let url = galera.nodes[0].url();
    let locks = process(&url.replace(&address, &line.address().to_string())).await;
    // The rows are new, and then they are there.
    for _ in 0..2 {
        let keys = ["one", "two", "three"];
        let guard = locks.lock(keys).acquire().await.unwrap();
        guard.release().await.unwrap();
    }
}

/// Both nodes find the row free and write it. One of the two is refused when it commits.
async fn an_acquire_that_another_node_overtook_is_no_grant(galera: &Galera) {
    let (first, second) = (&galera.nodes[0], &galera.nodes[1]);
    let locks = process(first.url()).await;
    let now = LockOptions::new;
    for key in ["free", "free too", "free as well"] {
        locks
            .lock(key)
            .options(&now())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let (free, new) = (process(second.url()).await, process(second.url()).await);
    let several = process(second.url()).await;
    // They have a connection.
    for locks in [&free, &new, &several] {
        locks
            .lock("warm")
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let refused_before = refused(second).await;
    let block = BlockedCommits::on(second).await;
    let owners = [
        locks.lock("free").options(&now()).acquire().await.unwrap(),
        locks.lock("new").options(&now()).acquire().await.unwrap(),
        locks.lock("free too").options(&now()).acquire().await.unwrap(),
    ];
    let asked = tokio::spawn(async move {
        tokio::join!(
            free.lock("free").options(&now()).try_acquire(),
            new.lock("new").options(&now()).try_acquire(),
            several
                .lock(["free too", "free as well"])
                .options(&now())
                .try_acquire()
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

/// Processes that name the nodes in different orders, and one that does not reach the node in use.
async fn all_processes_use_one_node(galera: &Galera) {
    let (one, two) = (process(&galera.url(0)).await, process(&galera.url(1)).await);
    let nodes = galera.nodes.each_ref();
    let before = used(nodes).await;
    for (locks, key) in [(&one, "by one"), (&two, "by two")] {
        locks
            .lock(key)
            .options(&patient())
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let after = used(nodes).await;
    let writing: Vec<_> = (0..3).filter(|node| after[*node] > before[*node]).collect();
    assert_eq!(writing.len(), 1, "{before:?} {after:?}");
    let others = nodes.iter().enumerate().filter(|(node, _)| *node != writing[0]);
    let others: Vec<_> = others.map(|(_, node)| node.address()).collect();
    let (address, url) = (nodes[0].address(), nodes[0].url());
    refused_as_unlisted(&url.replace(&address, &others.join(","))).await;

    // The named node is none that there is. Who may not read the members counts them.
    let mut admin = MySqlConnection::connect(url).await.unwrap();
    run(&mut admin, "CREATE USER app IDENTIFIED BY 'x'").await;
    run(
        &mut admin,
        "GRANT SELECT, INSERT, UPDATE, DELETE ON dblock.* TO app",
    )
    .await;
    name_nobody(nodes[0]).await;
    let app = |url: &str| format!("mysql://app:x@{}", url.split_once('@').unwrap().1);
    refused_as_unlisted(&app(&url.replace(&address, &others.join(",")))).await;
    process(&app(&galera.url(2))).await;
    // Connections that are open follow to the node that is named now.
    let before = used(nodes).await[2];
    let follows = async {
        while used(nodes).await[2] == before {
            one.lock("by one")
                .options(&patient())
                .acquire()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
        }
    };
    timeout(LONG, follows).await.expect("it follows");
}

/// The node in use is one that has left.
async fn name_nobody(through: &Server) {
    let mut admin = MySqlConnection::connect(through.url()).await.unwrap();
    let name = "UPDATE distributed_lock_version SET version = 1, min_client = 2 WHERE id = 2";
    run(&mut admin, name).await;
}

async fn refused_as_unlisted(url: &str) {
    let error = LockManager::connect(url).await.unwrap_err();
    assert!(error.is_retryable());
    let source = error.to_string();
    assert!(source.contains("all processes use another node"), "{source}");
}

/// How many transactions began on each node and were sent to the others.
async fn used(nodes: [&Server; 3]) -> Vec<i64> {
    let mut all = Vec::new();
    for node in nodes {
        let mut admin = MySqlConnection::connect(node.url()).await.unwrap();
        let sql = "SELECT CAST(variable_value AS SIGNED) FROM information_schema.global_status \
                   WHERE variable_name = 'wsrep_replicated'";
        all.push(sqlx::query_scalar(sql).fetch_one(&mut admin).await.unwrap());
    }
    all
}

/// The second node has not carried out yet what the first one has granted, when the first one ends.
async fn a_lease_is_known_on_the_node_that_is_used_next(galera: &mut Galera) {
    name_nobody(&galera.nodes[0]).await;
    let locks = process(&galera.url(0)).await;
    locks
        .lock("warm")
        .options(&patient())
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let block = BlockedCommits::on(&galera.nodes[1]).await;
    let third = galera.nodes[2].url().to_owned();
    let before = moves::to(&third);
    let first = &mut galera.nodes[0];
    let held = locks.lock("held").options(&patient()).ttl(LONG).run(async {
        first.stop_at_once();
        // The row counts the holds.
        locks
            .lock("held")
            .options(&patient())
            .acquire()
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
        .lock("held")
        .options(&patient())
        .acquire()
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
