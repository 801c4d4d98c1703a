//! Where a run took place.

use std::fs;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// The versions of the libraries that are compared.
const LOCK_FILE: &str = include_str!("../Cargo.lock");

/// The libraries whose versions matter. sqlx is in twice: ours first, then that of others.
const LIBRARIES: [&str; 11] = [
    "dblock",
    "sqlx",
    "distributed-lock-postgres",
    "distributed-lock-mysql",
    "rslock",
    "async-redis-lock",
    "redis",
    "zookeeper-client",
    "etcd-client",
    "libsqlite3-sys",
    "tokio",
];

/// Processor, kernel, compiler and libraries.
pub(crate) fn describe() -> Map<String, Value> {
    let libraries = LIBRARIES.map(|name| (name.to_owned(), json!(versions(LOCK_FILE, name).join(", "))));
    Map::from_iter([
        ("cpu".to_owned(), json!(after("/proc/cpuinfo", "model name"))),
        (
            "cores".to_owned(),
            json!(std::thread::available_parallelism().map_or(0, usize::from)),
        ),
        ("memory".to_owned(), json!(after("/proc/meminfo", "MemTotal"))),
        (
            "kernel".to_owned(),
            json!(
                fs::read_to_string("/proc/sys/kernel/osrelease")
                    .unwrap_or_default()
                    .trim()
            ),
        ),
        ("rustc".to_owned(), json!(env!("BENCH_RUSTC"))),
        ("libraries".to_owned(), Value::Object(Map::from_iter(libraries))),
    ])
}

/// How many cores are at work although nothing of ours runs yet; `None` where nobody knows.
pub(crate) async fn busy_cores() -> Option<f64> {
    let before = cpu_ticks()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = cpu_ticks()?;
    let (busy, all) = (after.0 - before.0, after.1 - before.1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Some(busy as f64 / all.max(1) as f64 * cores as f64)
}

/// Ticks of all cores since the start: at work, and in all.
fn cpu_ticks() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text
        .lines()
        .next()?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let all = ticks.iter().sum();
    // The fourth and fifth are idle, and idle while a disk works.
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some((all - idle, all))
}

/// The text that follows `name:` in the file.
fn after(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The versions of a package in a lock file, the newest first.
fn versions<'a>(lock_file: &'a str, package: &str) -> Vec<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock_file.lines();
    let mut found = Vec::new();
    while lines.any(|line| line == name) {
        found.extend(
            lines
                .next()
                .and_then(|line| line.strip_prefix("version = \"")?.strip_suffix('"')),
        );
    }
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_in_the_lock_file() {
        for name in LIBRARIES {
            assert!(!versions(LOCK_FILE, name).is_empty(), "{name}");
        }
        assert_eq!(versions(LOCK_FILE, "sqlx").len(), 2);
    }
}
