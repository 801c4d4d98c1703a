//! The command line.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{check, failover, history, report, run, soak, worker};

#[derive(Debug, Parser)]
#[command(
    name = "dblock-torture",
    about = "Competes for locks while processes, connections and servers fail"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run, check and report.
    Run(run::Arguments),
    /// Make servers fail over while callers hold and wait, and measure.
    Failover(failover::Arguments),
    /// Lock many keys for long, and measure what grows.
    Soak(soak::Arguments),
    /// Check the history of an earlier run again.
    Check {
        /// The folder of the history.
        folder: PathBuf,
    },
    /// Print the history of an earlier run as operations, a JSON object a line, for a linearizability checker.
    Export {
        /// The folder of the history.
        folder: PathBuf,
    },
    /// A process of a run.
    #[command(hide = true)]
    Worker(worker::Arguments),
}

/// Runs the program with the arguments of this process.
pub fn main() -> ExitCode {
    let ended = match Cli::parse().command {
        Command::Run(arguments) => run::main(&arguments),
        Command::Failover(arguments) => run::until_signal(failover::run(&arguments)),
        Command::Soak(arguments) => run::until_signal(soak::run(&arguments)),
        Command::Check { folder } => check_again(&folder),
        Command::Export { folder } => export(&folder),
        Command::Worker(arguments) => worker::main(&arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn check_again(folder: &std::path::Path) -> anyhow::Result<ExitCode> {
    let history = history::History::read(folder)?;
    let verdict = check::check(&history);
    report::print(&verdict);
    report::pictures(&history, &verdict, folder)?;
    Ok(report::exit_code(&verdict))
}

fn export(folder: &std::path::Path) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    for operation in check::operations(&history::History::read(folder)?) {
        serde_json::to_writer(&mut out, &operation)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}
