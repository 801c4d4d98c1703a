//! `cargo xtask failover`: builds the torture, sees to it that the servers' programs are there, and starts
//! its run of fail-overs. It has servers of its own, which replace each other.

use std::process::ExitCode;

use dblock_servers::{self as servers, Kind, Purpose, etcd, galera, packages};
use tokio::process::Command;

use crate::command::{carry_out, word};
use crate::torture::{STOP, build};

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
    /// Three nodes of MariaDB with Galera, which each manager names in another order.
    Galera,
}

pub(crate) async fn run(args: &Args, install: bool) -> anyhow::Result<ExitCode> {
    let missing = || {
        let mut packages = etcd::missing_compiler();
        packages.extend(match args.store {
            Store::Postgres => servers::missing(&[Kind::Postgres], Purpose::Torture),
            Store::Galera => galera::missing(),
        });
        packages
    };
    packages::install(missing, "", install).await?;
    let mut command = Command::new(build().await?);
    let store = word(&args.store);
    command.args([
        "failover",
        "--store",
        &store,
        "--rounds",
        &args.rounds.to_string(),
    ]);
    command.args(["--seed", &args.seed.to_string()]);
    carry_out(command, STOP).await
}
