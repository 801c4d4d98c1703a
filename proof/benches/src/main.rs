//! dblock beside other locks: the same scenarios, on the same servers, in one run, in turns.
//!
//! `cargo xtask bench` starts the servers and this program. It can also be run by hand against servers that
//! are up.

mod cpu;
mod delay;
mod load;
mod machine;
mod measure;
mod ratios;
mod recorder;
mod report;
mod results;
mod run;
mod scenario;
mod servers;
mod subject;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use scenario::{Pace, Scenario};
use subject::Kind;

#[derive(Debug, Parser)]
#[command(about = "Measures dblock beside other locks")]
struct Cli {
    #[command(flatten)]
    urls: servers::Urls,
    #[command(flatten)]
    choice: Choice,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    /// A second process of a scenario; started by the first.
    #[command(hide = true)]
    Worker(worker::Args),
}

/// Says what is measured, and where the results go.
#[derive(Debug, clap::Args)]
struct Choice {
    /// Fewer and shorter rounds.
    #[arg(long)]
    quick: bool,
    /// Run these scenarios only.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    only: Vec<Scenario>,
    /// Measure these subjects only.
    #[arg(long, value_enum, value_delimiter = ',', num_args = 1..)]
    subjects: Vec<Kind>,
    /// Write everything to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write table, plots and JSON into this folder.
    #[arg(long)]
    publish: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match work(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn work(cli: Cli) -> anyhow::Result<()> {
    if let Some(Role::Worker(args)) = cli.role {
        return worker::run(args).await;
    }
    let pace = Pace {
        quick: cli.choice.quick,
    };
    let (results, outcome) = run::run(cli.urls, pace, &cli.choice.only, &cli.choice.subjects).await?;
    println!("{}", report::tables(&results));
    if let Some(file) = &cli.choice.json {
        std::fs::write(file, report::json(&results)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("wrote {}", file.display());
    }
    // A part of a run is not worth publishing.
    outcome?;
    if let Some(folder) = &cli.choice.publish {
        report::publish(&results, folder)?;
        eprintln!("wrote table, plots and figures into {}", folder.display());
    }
    Ok(())
}
