//! `cargo xtask mutants`: cargo-mutants changes one place of the core after the other, in a copy of the code, or of the
//! macros, or of a store. Tests judge each change.
//!
//! The lists of what was found and missed are in `target/mutants.out`. `.cargo/mutants.toml` names the changes that
//! are left out, and why.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use dblock_servers::process::{Process, shown};
use dblock_servers::{Kind, Purpose, Servers};
use tokio::process::Command;

use crate::command::STOP;
use crate::copied::Tree;
use crate::environment::variables;
use crate::steps::target_folder;
use crate::tool::Tool;

const TOOL: Tool = Tool {
    name: "cargo-mutants",
    version: "27.1.0",
    features: &[],
};

/// What it ends with when some changes were not found.
const MISSED: i32 = 2;

/// What it ends with when some tests did not end, which finds a change too. Others may be missed.
const ENDLESS: i32 = 3;

/// The code that is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    /// `dblock-core`. Its tests judge, and the simulation.
    Core,
    /// `dblock-macros`. Its tests judge.
    Macros,
    /// The SQLite store. The suite judges, and the tests of this store.
    Sqlite,
    /// `dblock-redis` with one server. The suite judges.
    Redis,
}

impl Of {
    /// The places and the tests, for cargo-mutants.
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Core => &[
                "--package=dblock-core",
                "--test-package=dblock-core,dblock-simulation",
                // The simulation runs for longer than it takes to compile.
                "--profile=mutants",
            ],
            Self::Macros => &["--package=dblock-macros", "--cargo-arg=--lib"],
            Self::Sqlite => &[
                "--package=dblock",
                "--cargo-arg=--package=dblock-tests",
                "--cargo-arg=--test=conformance",
                "--cargo-arg=--test=store_sqlite",
                // Of the suite, what is not on this store alone.
                "--cargo-test-arg=--",
                "--cargo-test-arg=--skip=postgres",
                "--cargo-test-arg=--skip=mysql",
                "--cargo-test-arg=--skip=memory",
                "--cargo-test-arg=--skip=telling",
                "--cargo-test-arg=--skip=sharded_",
                "--cargo-test-arg=--skip=moving_",
                "--cargo-test-arg=--skip=custom_store",
            ],
            Self::Redis => &[
                "--package=dblock-redis",
                "--cargo-arg=--lib",
                // Their tests take minutes.
                "--exclude=stores/redis/src/cluster.rs",
                "--exclude=stores/redis/src/sentinel.rs",
                "--cargo-test-arg=--",
                "--cargo-test-arg=--skip=tests::cluster::",
                "--cargo-test-arg=--skip=tests::sentinel::",
                "--cargo-test-arg=--skip=cluster::tests::",
                "--cargo-test-arg=--skip=sentinel::tests::",
            ],
        }
    }

    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Sqlite => &["dblock/src/store/sqlite.rs", "dblock/src/store/sqlite/**"],
            _ => &[],
        }
    }

    fn servers(self) -> &'static [Kind] {
        match self {
            Self::Redis => &[Kind::Redis],
            _ => &[],
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long, value_enum, default_value_t = Of::Core)]
    of: Of,
    /// One part of all changes, counted from 0: `0/10` is each tenth, which takes less than half an hour on two cores.
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
    /// Only changes in these files, such as `dblock-core/src/machine/end.rs`.
    #[arg(long)]
    file: Vec<String>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tool = TOOL.get().await?;
    let target = target_folder().await?;
    let folder = target.join("mutants");
    if folder.exists() {
        // What a run left that was stopped may have a change in it.
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let tree = Tree::copy(folder.join("tree")).await?;
    let servers = Servers::start(args.of.servers(), Purpose::Tests).await?;
    let mut command = Command::new(tool);
    command.args(["mutants", "--in-place"]);
    command.args(args.of.words());
    command.arg("--output").arg(&target);
    command.args(args.shard.iter().flat_map(|shard| ["--shard", shard]));
    let mut files: Vec<&str> = args.file.iter().map(String::as_str).collect();
    if files.is_empty() {
        files.extend(args.of.files());
    }
    command.args(files.iter().flat_map(|file| ["--file", file]));
    command.current_dir(tree.folder());
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command.env("CARGO_INCREMENTAL", "1");
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.envs(variables(&servers));
    eprintln!("$ {}", shown(&command));
    let missed = target.join("mutants.out").join("missed.txt");
    let status = Process::start(&mut command, STOP)?.wait().await?;
    match status.code() {
        Some(0) => Ok(ExitCode::SUCCESS),
        Some(ENDLESS) if fs::read(&missed)?.is_empty() => Ok(ExitCode::SUCCESS),
        Some(MISSED | ENDLESS) => bail!(
            "no test found some changes: add a test, or list them in .cargo/mutants.toml with the reason"
        ),
        _ => bail!("cargo-mutants failed: {status}"),
    }
}
