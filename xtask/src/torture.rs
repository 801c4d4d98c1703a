//! `cargo xtask torture`: builds the torture, sees to it that its servers' programs are there, and starts it.
//! It has servers of its own, which it kills and restarts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::stream::{self, StreamExt as _};
use rustix::process::Signal;
use tokio::process::Command;

use crate::command::{cargo, carry_out, kept, linting_cargo, run as run_to_end, show, word};
use crate::copied::Tree;
use crate::install;
use crate::steps::{FEATURES, Passed, target_folder, workspace};
use dblock_servers::process::{Stop, Target};
use dblock_servers::{Kind, packages};

/// It ends its processes and its server itself.
pub(crate) const STOP: Stop = Stop {
    signal: Signal::TERM,
    to: Target::Process,
    grace: Duration::from_secs(30),
};

/// The minutes of torture for each store in `cargo xtask test`.
const BRIEFLY: &str = "0.25";

/// How many stores are tortured at once beside the tests. More of them starve each other on two cores, and a
/// starved call looks like one that the store failed.
const AT_ONCE: usize = 2;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Where the locks are kept.
    #[arg(long, value_enum)]
    store: Store,
    /// How long faults are injected.
    #[arg(long, default_value = "1")]
    minutes: String,
    /// Decides which faults come when, and what the processes do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The server's files are on a disk that loses power, is full, fails and becomes read-only. With `--disk=forgetful` the
    /// server answers before it has written, and the run must find that. Needs root.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "durable")]
    disk: Option<String>,
    /// An upgrade from this commit, which is built with its own lock file: its processes make and use the table; then the
    /// table is migrated under them, and from then on every second process is of this version.
    #[arg(long)]
    from: Option<String>,
    /// More arguments for the torture: `-- --help` lists them.
    #[arg(last = true)]
    extra: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Store {
    Postgres,
    Mysql,
    Sqlite,
    Redis,
    RedisSentinel,
    Zookeeper,
    Etcd,
}

impl Store {
    /// Those of `cargo xtask test`, whose time is limited. A fail-over takes longer than that has time for.
    const ALL: [Self; 4] = [Self::Postgres, Self::Mysql, Self::Sqlite, Self::Redis];

    /// Its server; none for a file.
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Postgres => Some(Kind::Postgres),
            Self::Mysql => Some(Kind::MySql),
            Self::Redis | Self::RedisSentinel => Some(Kind::Redis),
            Self::Zookeeper => Some(Kind::ZooKeeper),
            Self::Etcd => Some(Kind::Etcd),
            Self::Sqlite => None,
        }
    }
}

pub(crate) async fn run(args: &Args, install: bool) -> anyhow::Result<ExitCode> {
    let kinds = Vec::from_iter(args.store.kind());
    packages::install(|| install::of_torture(&kinds), "", install).await?;
    let mut command = command(&build().await?, args);
    if let Some(commit) = &args.from {
        command.arg("--from").arg(build_of(commit).await?);
    }
    carry_out(command, STOP).await
}

/// Builds the programs as they were at a commit. Returns their folder.
async fn build_of(commit: &str) -> anyhow::Result<PathBuf> {
    let folder = target_folder().await?.join("beside");
    let tree = Tree::of_commit(commit, folder.join("tree")).await?;
    let target = folder.join("target");
    let mut build = cargo([
        "build",
        "--locked",
        "--package",
        "dblock-torture",
        "--package",
        "dblock-cli",
    ]);
    build.current_dir(tree.folder()).env("CARGO_TARGET_DIR", &target);
    run_to_end(&mut build).await?;
    Ok(target.join("debug"))
}

/// The servers of [`briefly`].
pub(crate) fn kinds() -> Vec<Kind> {
    Store::ALL.into_iter().filter_map(Store::kind).collect()
}

/// A quarter of a minute on each store, with the same seed every time; on all at once.
pub(crate) async fn briefly(program: &Path) -> anyhow::Result<Passed> {
    let mut ended = stream::iter(Store::ALL.map(|store| once(program, store))).buffer_unordered(AT_ONCE);
    let (mut passed, mut failed) = (Passed::default(), Vec::new());
    while let Some(ended) = ended.next().await {
        match ended {
            Ok(output) => passed.note(&output),
            Err(error) => failed.push(format!("{error:#}")),
        }
    }
    anyhow::ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(passed)
}

/// Returns what it printed.
async fn once(program: &Path, store: Store) -> anyhow::Result<String> {
    let args = Args {
        store,
        minutes: BRIEFLY.to_owned(),
        seed: 1,
        from: None,
        disk: None,
        extra: Vec::new(),
    };
    let begin = Instant::now();
    let ended = kept(&mut command(program, &args), STOP).await?;
    let name = word(&store);
    if !ended.passed {
        show(&format!("the torture of {name}"), &ended.output);
        anyhow::bail!("the torture of {name} found something; its output is above");
    }
    let time = begin.elapsed().as_secs_f64();
    eprintln!("{time:6.1} s  torture of {name}: ok");
    Ok(ended.output)
}

/// Builds the program, from what the tests have built as far as possible: so with the same features.
pub(crate) async fn build() -> anyhow::Result<PathBuf> {
    let mut build = linting_cargo(["build", "--features", FEATURES]);
    build.args(workspace());
    run_to_end(build.args(["--bin", "dblock-torture"])).await?;
    Ok(target_folder().await?.join("debug/dblock-torture"))
}

fn command(program: &Path, args: &Args) -> Command {
    let mut command = if args.disk.is_none() {
        Command::new(program)
    } else {
        // The disk is mounted for this program and its servers alone, and goes with them.
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(program);
        command
    };
    command
        .args(["run", "--store", &word(&args.store), "--minutes", &args.minutes])
        .args(["--seed", &args.seed.to_string()])
        .args(args.disk.iter().map(|disk| format!("--disk={disk}")))
        .args(&args.extra);
    command
}
