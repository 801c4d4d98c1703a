//! `cargo xtask simulate`: builds the simulation, and runs it.

use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;

use crate::command::cargo;
use dblock_servers::process::{Process, Stop, Target, shown};

const STOP: Stop = Stop {
    signal: Signal::TERM,
    to: Target::Group,
    grace: Duration::from_secs(2),
};

/// Where the simulation is.
pub(crate) const PROGRAM: [&str; 2] = ["-p", "dblock-simulation"];

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// How many schedules.
    #[arg(long, default_value_t = 1_000_000)]
    seeds: u64,
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
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = cargo(["run", "--release"]);
    command.args(PROGRAM).arg("--");
    command.arg("--seeds").arg(args.seeds.to_string());
    command.arg("--seed").arg(args.seed.to_string());
    command.args(args.digest.then_some("--digest"));
    command.args(args.all.then_some("--all"));
    if let Some(most) = args.small {
        command.arg("--small").arg(most.to_string());
    }
    eprintln!("$ {}", shown(&command));
    let status = Process::start(&mut command, STOP)?.wait().await?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}
