//! `cargo xtask torture`: builds the torture, sees to it that its servers' programs are there, and starts it.
//! It has servers of its own, which it kills and restarts.

use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;
use tokio::process::Command;

use crate::steps;
use dblock_servers::process::{Process, Stop, Target, shown};
use dblock_servers::{self as servers, Kind};

/// It ends its processes and its server itself.
const STOP: Stop = Stop {
    signal: Signal::TERM,
    to: Target::Process,
    grace: Duration::from_secs(30),
};

/// What each store goes through in `cargo xtask test`.
const BRIEFLY: &str = "0.25";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    /// Where the locks are kept.
    #[arg(long, value_enum)]
    store: Store,
    /// How long faults are injected.
    #[arg(long, default_value = "1")]
    minutes: String,
    /// Decides which faults come when, and what the processes do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// More arguments for the torture: `-- --help` lists them.
    #[arg(last = true)]
    extra: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Store {
    Postgres,
    Mysql,
    Sqlite,
}

impl Store {
    const ALL: [Self; 3] = [Self::Postgres, Self::Mysql, Self::Sqlite];

    fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Mysql => "mysql",
            Self::Sqlite => "sqlite",
        }
    }

    /// Its server; none for a file.
    fn kind(self) -> Option<Kind> {
        match self {
            Self::Postgres => Some(Kind::Postgres),
            Self::Mysql => Some(Kind::MySql),
            Self::Sqlite => None,
        }
    }
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    prepare(args.store).await?;
    let mut command = command(args).await?;
    eprintln!("$ {}", shown(&command));
    let status = Process::start(&mut command, STOP)?.wait().await?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A quarter of a minute on each store, with the same seed every time.
pub(crate) async fn briefly() -> anyhow::Result<()> {
    for store in Store::ALL {
        let args = Args {
            store,
            minutes: BRIEFLY.to_owned(),
            seed: 1,
            extra: Vec::new(),
        };
        let code = run(&args).await?;
        anyhow::ensure!(
            code == ExitCode::SUCCESS,
            "the torture of {} found something; its output is above",
            store.name()
        );
    }
    Ok(())
}

async fn prepare(store: Store) -> anyhow::Result<()> {
    if let Some(kind) = store.kind() {
        servers::install(kind).await?;
        if !servers::has_faketime() {
            servers::install_if_we_may("libfaketime").await;
        }
    }
    steps::run(&mut steps::cargo(["build", "--package", "dblock-torture"])).await
}

async fn command(args: &Args) -> anyhow::Result<Command> {
    let program = steps::target_folder().await?.join("debug/dblock-torture");
    let mut command = Command::new(program);
    command
        .args(["run", "--store", args.store.name(), "--minutes", &args.minutes])
        .args(["--seed", &args.seed.to_string()])
        .args(&args.extra);
    Ok(command)
}
