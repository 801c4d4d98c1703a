//! dblock beside other locks: the same scenarios, on the same servers, in one run, in turns.
//!
//! `cargo xtask bench` starts the servers and this program. It can also be run by hand against servers that
//! are up.

mod load;
mod measure;
mod ratios;
mod report;
mod results;
mod run;
mod scenario;
mod servers;
mod subject;

use std::path::PathBuf;

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
}

/// What is measured, and where the results go.
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
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let pace = Pace {
        quick: cli.choice.quick,
    };
    let results = run::run(cli.urls, pace, &cli.choice.only, &cli.choice.subjects).await?;
    println!("{}", report::tables(&results));
    if let Some(file) = &cli.choice.json {
        std::fs::write(file, serde_json::to_string_pretty(&results.json())? + "\n")?;
        eprintln!("wrote {}", file.display());
    }
    Ok(())
}
