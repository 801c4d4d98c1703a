//! `cargo xtask failover`: builds the torture, sees to it that the servers' programs are there, and starts
//! its run of fail-overs. It has servers of its own, which replace each other.

use std::process::ExitCode;

use dblock_servers::{self as servers, Kind};
use tokio::process::Command;

use crate::torture::{build, carry_out};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The servers.
    #[arg(long, value_enum)]
    store: Store,
    /// How many faults there are, one after the other.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Decides how long each fault lasts, and what the callers do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Store {
    /// A PostgreSQL primary and its synchronous standby.
    Postgres,
    /// Three nodes of MariaDB with Galera, of which one is in use.
    Galera,
    /// The same with two nodes in use at once, which is not promised to be safe.
    GaleraTwoInUse,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let name = match args.store {
        Store::Postgres => {
            servers::install(Kind::Postgres).await?;
            "postgres"
        }
        Store::Galera => {
            servers::galera::install().await?;
            "galera"
        }
        Store::GaleraTwoInUse => {
            servers::galera::install().await?;
            "galera-two-in-use"
        }
    };
    let mut command = Command::new(build().await?);
    command.args(["failover", "--store", name, "--rounds", &args.rounds.to_string()]);
    command.args(["--seed", &args.seed.to_string()]);
    carry_out(command).await
}
