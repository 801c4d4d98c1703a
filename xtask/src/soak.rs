//! `cargo xtask soak`: builds the torture, sees to it that its server's programs are there, and starts its soak.

use std::process::ExitCode;

use dblock_servers::{self as servers, Kind, Purpose, etcd, packages};
use tokio::process::Command;

use crate::command::carry_out;
use crate::torture::{STOP, build};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the run is.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

pub(crate) async fn run(args: &Args, install: bool) -> anyhow::Result<ExitCode> {
    let missing = || {
        let mut packages = etcd::missing_compiler();
        packages.extend(servers::missing(&[Kind::Postgres], Purpose::Torture));
        packages
    };
    packages::install(missing, "", install).await?;
    let mut command = Command::new(build().await?);
    command.args(["soak", "--minutes", &args.minutes.to_string()]);
    carry_out(command, STOP).await
}
