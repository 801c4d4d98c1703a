//! A rolling change from two shards to three, by processes that are killed while they work.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dblock::ShardedStore;
use dblock::open;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const NODES: usize = 3;

/// So much work is done between two changes.
const ENTRIES: u64 = 60;

/// No test waits longer for anything.
const TIMEOUT: Duration = Duration::from_mins(2);

struct Cluster {
    folder: TempDir,
    nodes: Vec<Child>,
}

impl Cluster {
    fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let nodes = (0..NODES).map(|_| node(folder.path(), "old")).collect();
        Self { folder, nodes }
    }

    /// Kills a node, and starts another in its place.
    fn replace(&mut self, at: usize, mode: &str) {
        end(&mut self.nodes[at]);
        self.nodes[at] = node(self.folder.path(), mode);
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
        let shard = |name: &'static str| {
            let file = sqlx::sqlite::SqliteConnectOptions::new().filename(self.folder.path().join(name));
            (name, open::sqlite::open(file, "distributed_lock").unwrap())
        };
        let old = ShardedStore::new([shard("a"), shard("b")]).unwrap();
        let new = ShardedStore::new([shard("a"), shard("b"), shard("c")]).unwrap();
        old.moving_to(new).unwrap().time_left().await.unwrap()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.nodes.iter_mut().for_each(end);
    }
}

fn node(folder: &Path, mode: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_sharded_node"))
        .arg(mode)
        .arg(folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn end(node: &mut Child) {
    node.kill().unwrap();
    node.wait().unwrap();
}

#[tokio::test]
async fn a_rolling_change_in_two_steps_lets_nobody_in_beside_another() {
    let mut cluster = Cluster::start();
    cluster.roll("moving").await;
    sleep(cluster.time_left().await).await;
    cluster.roll("new").await;
    println!("{} entries", cluster.entries());
    assert_eq!(cluster.violations(), "");
}

/// The same in one step: the test that the moving mode is needed, and that the witnesses see what they are for.
#[tokio::test]
async fn a_rolling_change_in_one_step_lets_two_in() {
    let mut cluster = Cluster::start();
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
}
