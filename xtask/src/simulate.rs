//! `cargo xtask simulate`: builds the simulation of the core, or that of the whole stack, and runs it.

use std::process::ExitCode;

use crate::command::{STOP, cargo, carry_out};

/// Where the simulation of the core is.
pub(crate) const PROGRAM: [&str; 2] = ["-p", "dblock-simulation"];

/// Where that of the whole stack is.
pub(crate) const WHOLE_STACK: [&str; 2] = ["-p", "dblock-whole-stack"];

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// How many schedules. Without it, a million, or 10,000 runs of the whole stack.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only print one number for all events of the schedules: a refactoring of the core keeps it.
    #[arg(long)]
    digest: bool,
    /// Go on after a schedule that fails, and only count.
    #[arg(long)]
    all: bool,
    /// Instead of seeds, all schedules of small worlds that make at most so many choices other than the simplest.
    #[arg(long, value_name = "CHOICES")]
    small: Option<u32>,
    /// dblock as it ships, with its driver, in place of the core alone.
    #[arg(long, conflicts_with_all = ["digest", "all", "small"])]
    whole_stack: bool,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = cargo(["run", "--release"]);
    command
        .args(if args.whole_stack { WHOLE_STACK } else { PROGRAM })
        .arg("--");
    if let Some(seeds) = args.seeds {
        command.arg("--seeds").arg(seeds.to_string());
    }
    command.arg("--seed").arg(args.seed.to_string());
    command.args(args.digest.then_some("--digest"));
    command.args(args.all.then_some("--all"));
    if let Some(most) = args.small {
        command.arg("--small").arg(most.to_string());
    }
    carry_out(command, STOP).await
}
