//! `cargo xtask mutants`: cargo-mutants changes one place of the core after the other, in a copy of the code. The
//! core's own tests judge, and the simulation judges what they let pass.
//!
//! The lists of what was found and missed are in `target/mutants.out`. `.cargo/mutants.toml` names the changes that
//! are left out, and why.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use dblock_servers::process::{Process, shown};
use tokio::process::Command;

use crate::command::STOP;
use crate::copied::Tree;
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

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// One part of all changes, counted from 0: `0/10` is the first of ten, which takes less than half an hour on
    /// two cores.
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
    let mut command = Command::new(tool);
    command.args(["mutants", "--in-place", "--package", "dblock-core"]);
    command.args(["--test-package", "dblock-core,dblock-simulation"]);
    command.args(["--profile", "mutants"]);
    command.arg("--output").arg(&target);
    command.args(args.shard.iter().flat_map(|shard| ["--shard", shard]));
    command.args(args.file.iter().flat_map(|file| ["--file", file]));
    command.current_dir(tree.folder());
    command.env("CARGO_TARGET_DIR", folder.join("target"));
    command.env("CARGO_INCREMENTAL", "1");
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
