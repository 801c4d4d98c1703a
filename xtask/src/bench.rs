//! `cargo xtask bench`: builds the benches, and runs them on throw-away servers.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::command::{cargo, run as run_to_end};
use crate::etcd;
use dblock_servers::{self as servers, Purpose, Servers, packages};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Fewer and shorter rounds: some 13 minutes instead of an hour, after building.
    #[arg(long)]
    quick: bool,
    /// Write all figures to this file.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Run these scenarios only, such as `keys256`.
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    only: Vec<String>,
    /// Measure these subjects only, such as `dblock-postgres`.
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    subjects: Vec<String>,
}

pub(crate) async fn run(args: &Args, install: bool) -> anyhow::Result<ExitCode> {
    packages::install(missing, &Purpose::Benches.otherwise(), install).await?;
    eprintln!(
        "building the benches and the libraries beside which dblock is measured, optimized: some minutes the first time"
    );
    let mut manifest = vec!["--manifest-path", "proof/benches/Cargo.toml"];
    if etcd::left_out().is_empty() {
        manifest.extend(["--features", "etcd"]);
    }
    run_to_end(cargo(["build", "--release", "--locked"]).args(&manifest)).await?;

    let servers = Servers::start_missing(Purpose::Benches).await?;
    eprintln!(
        "{} run, with the durability that they have by default",
        servers.names().join(", ")
    );
    let mut command = cargo(["run", "--quiet", "--release", "--locked"]);
    command.args(&manifest).arg("--").envs(servers.variables());
    if args.quick {
        command.arg("--quick");
    }
    for (name, values) in [("--only", &args.only), ("--subjects", &args.subjects)] {
        if !values.is_empty() {
            command.args([name, &values.join(",")]);
        }
    }
    if let Some(file) = &args.json {
        // Cargo runs the program in the folder of the workspace.
        command
            .arg("--json")
            .arg(std::path::absolute(file).context("the path of the file")?);
    }
    // Neither a part nor a quick run replaces the published figures.
    let whole = args.only.is_empty() && args.subjects.is_empty() && !args.quick;
    command.args([
        "--publish",
        if whole {
            "docs/benchmarks"
        } else {
            "target/benchmarks"
        },
    ]);
    run_to_end(&mut command).await?;
    Ok(ExitCode::SUCCESS)
}

/// What is not here of what the benches need.
fn missing() -> Vec<&'static str> {
    let (wanted, _) = Purpose::Benches.wanted();
    let mut packages = servers::missing(&wanted, Purpose::Benches);
    packages.extend(servers::etcd::missing_compiler());
    // On Linux, distributed-lock-postgres links with OpenSSL and needs its headers.
    if cfg!(target_os = "linux") && !openssl() {
        packages.extend(["libssl-dev", "pkg-config"]);
    }
    packages
}

fn openssl() -> bool {
    let mut ask = std::process::Command::new("pkg-config");
    let found = ask.args(["--exists", "openssl"]).status();
    found.is_ok_and(|status| status.success())
}
