//! A rolling change from two shards to three, by processes that are killed while they work.

use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::time::Duration;

use dblock::store::Store as _;
use dblock_tests::{Kind, postgres_url, three_shards};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

const NODES: usize = 3;

/// So much work is done between two changes.
const ENTRIES: u64 = 60;

/// No test waits longer for anything.
const TIMEOUT: Duration = Duration::from_mins(2);

struct Cluster {
    folder: TempDir,
    /// The URLs of the three shards.
    shards: Vec<String>,
    nodes: Vec<Child>,
}

impl Cluster {
    /// `None` when the server is not given.
    async fn start(kind: Kind) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let shards = match kind {
            Kind::Postgres => databases(&postgres_url()?).await,
            _ => ["a", "b", "c"]
                .map(|name| format!("sqlite://{}", folder.path().join(name).display()))
                .into(),
        };
        let mut cluster = Self {
            folder,
            shards,
            nodes: Vec::new(),
        };
        cluster.nodes = (0..NODES).map(|_| cluster.node("old")).collect();
        Some(cluster)
    }

    fn node(&self, mode: &str) -> Child {
        Command::new(env!("CARGO_BIN_EXE_sharded_node"))
            .arg(mode)
            .arg(self.folder.path())
            .args(&self.shards)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Kills a node, and starts another in its place.
    fn replace(&mut self, at: usize, mode: &str) {
        end(&mut self.nodes[at]);
        self.nodes[at] = self.node(mode);
    }

    fn entries(&self) -> u64 {
        std::fs::metadata(self.folder.path().join("entries")).map_or(0, |file| file.len())
    }

    fn violations(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("violations")).unwrap_or_default()
    }

    /// Waits until so much more work was done.
    async fn work(&self) {
        let (since, before) = (Instant::now(), self.entries());
        while self.entries() < before + ENTRIES {
            assert!(since.elapsed() < TIMEOUT, "nobody works");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Replaces all nodes, one after the other, and one of them twice.
    async fn roll(&mut self, mode: &str) {
        for at in 0..NODES {
            self.work().await;
            self.replace(at, mode);
        }
        self.work().await;
        self.replace(0, mode);
        self.work().await;
    }

    /// How long the tokens of the old shards are ahead, now that no process with these shards is left.
    async fn time_left(&self) -> Duration {
        let (old, new) = three_shards::open(&self.shards);
        let moving = old.moving_to(new).unwrap();
        let left = moving.time_left().await.unwrap();
        moving.close().await;
        left
    }

    async fn clean_up(mut self) {
        self.nodes.iter_mut().for_each(end);
        if let Some(url) = postgres_url().filter(|_| self.shards[0].starts_with("postgres")) {
            let mut admin = PgConnection::connect(&url).await.unwrap();
            for shard in &self.shards {
                let options = PgConnectOptions::from_str(shard).unwrap();
                let name = options.get_database().unwrap();
                let drop = format!("DROP DATABASE {name} WITH (FORCE)");
                sqlx::query(AssertSqlSafe(drop))
                    .execute(&mut admin)
                    .await
                    .unwrap();
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(end);
    }
}

/// Three databases on the server.
async fn databases(url: &str) -> Vec<String> {
    let server = PgConnectOptions::from_str(url).unwrap();
    let mut admin = PgConnection::connect_with(&server).await.unwrap();
    let mut urls = Vec::new();
    for shard in ["a", "b", "c"] {
        let name = format!("dblock_test_{shard}_{}", Uuid::now_v7().simple());
        let create = format!("CREATE DATABASE {name}");
        sqlx::query(AssertSqlSafe(create))
            .execute(&mut admin)
            .await
            .unwrap();
        urls.push(server.clone().database(&name).to_url_lossy().into());
    }
    urls
}

fn end(node: &mut Child) {
    node.kill().unwrap();
    node.wait().unwrap();
}

#[tokio::test]
async fn a_rolling_change_in_two_steps_lets_nobody_in_beside_another() {
    two_steps(Kind::Sqlite).await;
}

#[tokio::test]
async fn a_rolling_change_of_postgres_in_two_steps_lets_nobody_in_beside_another() {
    two_steps(Kind::Postgres).await;
}

async fn two_steps(kind: Kind) {
    let Some(mut cluster) = Cluster::start(kind).await else {
        return;
    };
    cluster.roll("moving").await;
    sleep(cluster.time_left().await).await;
    cluster.roll("new").await;
    println!("{} entries", cluster.entries());
    assert_eq!(cluster.violations(), "");
    cluster.clean_up().await;
}

/// The same in one step: the test that the moving mode is needed, and that the witnesses see what they are
/// for.
#[tokio::test]
async fn a_rolling_change_in_one_step_lets_two_in() {
    one_step(Kind::Sqlite).await;
}

#[tokio::test]
async fn a_rolling_change_of_postgres_in_one_step_lets_two_in() {
    one_step(Kind::Postgres).await;
}

async fn one_step(kind: Kind) {
    let Some(mut cluster) = Cluster::start(kind).await else {
        return;
    };
    cluster.work().await;
    cluster.replace(0, "new");
    let since = Instant::now();
    while !cluster.violations().contains("two are inside") {
        assert!(
            since.elapsed() < TIMEOUT,
            "no overlap in {} entries",
            cluster.entries()
        );
        sleep(Duration::from_millis(5)).await;
    }
    cluster.clean_up().await;
}
