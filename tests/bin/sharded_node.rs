//! A node of a service that takes locks on shards:
//! `sharded_node <old, moving or new> <folder> <URLs of the shards>`.
//!
//! The shards are `a` and `b` before the change, and `c` too after it. In the folder are the witnesses, a
//! file for each key: who is inside has it locked by the operating system, which lets go of it when the
//! process dies. A node writes a line into `violations` when it finds a witness locked, or a token that is
//! not above the last one.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dblock::{LockManager, LockOptions, current};
use dblock_sharded::ShardedStore;
use dblock_tests::three_shards;
use tokio::time::sleep;

const TASKS: usize = 4;
/// Two that stay, two that move from `a` to `c`, and two that move from `b`.
const KEYS: [&str; 6] = ["job:0", "job:6", "job:18", "job:28", "job:5", "job:9"];

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, mode, folder, urls @ ..] = &arguments[..] else {
        panic!("arguments: old, moving or new, a folder, and the URLs of three shards");
    };
    let folder = PathBuf::from(folder);
    let store = open_shards(mode, urls);
    let locks = LockManager::builder(store).auto_migrate(true).build().await;
    let locks = locks.expect("a manager");
    for _ in 0..TASKS {
        tokio::spawn(work(locks.clone(), folder.clone()));
    }
    std::future::pending::<()>().await;
}

/// The shards of a node before the change, during it and after it.
fn open_shards(mode: &str, urls: &[String]) -> ShardedStore {
    let (old, new) = three_shards::open(urls);
    match mode {
        "old" => old,
        "moving" => old.moving_to(new).expect("they can move"),
        "new" => new,
        other => panic!("no shards are called {other}"),
    }
}

async fn work(locks: LockManager, folder: PathBuf) {
    loop {
        let key = KEYS[fastrand::usize(..KEYS.len())];
        let options = LockOptions::new()
            .ttl(Duration::from_secs(3))
            .wait(Duration::from_secs(1));
        // Busy, or a shard that another process writes for long: the next one.
        let _ = locks.lock(key).options(&options).run(inside(&folder, key)).await;
    }
}

async fn inside(folder: &Path, key: &str) {
    let token = current().expect("it is inside").fence_token();
    let witness = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(format!("{key}.witness")))
        .expect("a witness");
    if witness.try_lock().is_err() {
        append(folder, "violations", &format!("two are inside {key}\n"));
        return;
    }
    let mut last = [0; 8];
    let read = witness.read_at(&mut last, 0).expect("a witness can be read");
    let last = if read == last.len() {
        i64::from_le_bytes(last)
    } else {
        0
    };
    if token <= last {
        append(
            folder,
            "violations",
            &format!("token {token} of {key} after {last}\n"),
        );
    }
    witness
        .write_all_at(&token.to_le_bytes(), 0)
        .expect("a witness can be written");
    append(folder, "entries", ".");
    sleep(Duration::from_millis(fastrand::u64(1..10))).await;
}

fn append(folder: &Path, name: &str, text: &str) {
    let file: std::io::Result<File> = OpenOptions::new()
        .append(true)
        .create(true)
        .open(folder.join(name));
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .expect("the folder is there");
}
