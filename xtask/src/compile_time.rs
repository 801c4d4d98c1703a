//! `cargo xtask compile-time`: what the attribute costs the compiler.
//!
//! Two crates with the same 300 methods, one with the attribute and one that calls `LockManager::with` by hand.
//! Their dependencies are checked beforehand; then each crate alone is checked again and again in turn, and
//! the fastest runs are compared.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Methods in each crate.
const METHODS: usize = 300;

/// Measured checks of each crate.
const ROUNDS: usize = 7;

/// By how much the attribute may be slower.
const MOST: f64 = 1.3;

const HEAD: &str = "
pub struct Order { pub id: u64, pub total: u64 }
#[derive(Debug)]
pub enum OrderError { Lock(LockError), Empty }
impl From<LockError> for OrderError {
    fn from(error: LockError) -> Self { Self::Lock(error) }
}
pub struct Service { pub locks: LockManager }
impl Service {
    async fn load(&self, id: u64) -> Result<Order, OrderError> {
        if id == 0 { Err(OrderError::Empty) } else { Ok(Order { id, total: 1 }) }
    }
    async fn save(&self, order: &Order) -> Result<(), OrderError> {
        if order.total == 0 { Err(OrderError::Empty) } else { Ok(()) }
    }
";

const BODY: &str = "
        let mut loaded = self.load(order.id).await?;
        if loaded.total == 0 {
            return Err(OrderError::Empty);
        }
        loaded.total += amount;
        self.save(&loaded).await?;
        Ok(loaded.total)
";

pub(crate) async fn run() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("xtask has a parent folder")?;
    let folder = tempfile::tempdir().context("a temporary folder")?;
    let target = root.join("target/compile-time");
    let by_hand = write_crate(folder.path(), root, "by-hand", |number| {
        format!(
            "    pub async fn settle_{number}(&self, order: &Order, amount: u64) -> Result<u64, OrderError> {{\n\
             let options = LockOptions::new().ttl(Duration::from_secs(30)).wait(Duration::from_secs(5));\n\
             self.locks.with(format!(\"order:{{}}\", order.id), options, async move {{{BODY}}}).await?\n}}\n"
        )
    })?;
    let attribute = write_crate(folder.path(), root, "attribute", |number| {
        format!(
            "    #[distributed_lock(key = \"order:{{order.id}}\", ttl = \"30s\", wait = \"5s\", manager = self.locks)]\n\
             pub async fn settle_{number}(&self, order: &Order, amount: u64) -> Result<u64, OrderError> {{{BODY}}}\n"
        )
    })?;
    check(&by_hand, &target).await?;
    check(&attribute, &target).await?;
    let mut fastest = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (fastest, folder) in fastest.iter_mut().zip([&by_hand, &attribute]) {
            *fastest = check(folder, &target).await?.min(*fastest);
        }
    }
    let ratio = fastest[1].as_secs_f64() / fastest[0].as_secs_f64();
    anstream::println!(
        "cargo check of {METHODS} methods: {:.2} s by hand, {:.2} s with the attribute",
        fastest[0].as_secs_f64(),
        fastest[1].as_secs_f64()
    );
    anstream::println!("ratio: {ratio:.2} (at most {MOST})");
    Ok(if ratio <= MOST {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A crate outside of the workspace, with the workspace's versions.
fn write_crate(
    folder: &Path,
    root: &Path,
    name: &str,
    method: impl Fn(usize) -> String,
) -> anyhow::Result<PathBuf> {
    let folder = folder.join(name);
    let dblock = root.join("dblock");
    std::fs::create_dir_all(folder.join("src"))?;
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock"))?;
    std::fs::write(
        folder.join("Cargo.toml"),
        format!(
            "[package]\nname = \"{name}\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
             dblock = {{ path = \"{}\", default-features = false, features = [\"macros\"] }}\n",
            dblock.display()
        ),
    )?;
    let mut code = String::from(
        "#![allow(unused_imports)]\nuse std::time::Duration;\n\
         use dblock::{LockError, LockManager, LockOptions, distributed_lock};\n",
    );
    code.push_str(HEAD);
    for number in 0..METHODS {
        writeln!(code, "{}", method(number))?;
    }
    code.push_str("}\n");
    std::fs::write(folder.join("src/lib.rs"), code)?;
    Ok(folder)
}

/// Checks a crate whose source is newer than its last check, and how long that took.
async fn check(folder: &Path, target: &Path) -> anyhow::Result<Duration> {
    let source = std::fs::File::options()
        .append(true)
        .open(folder.join("src/lib.rs"))?;
    source.set_modified(std::time::SystemTime::now())?;
    let since = Instant::now();
    let output = Command::new(env!("CARGO"))
        .args(["check", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .context("cargo check")?;
    let took = since.elapsed();
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(took)
}
