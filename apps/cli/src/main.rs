//! The command `dblock`: runs a command under a distributed lock, and shows and mends locks. docs/cli.md
//! describes it.

mod cli;
mod commands;
mod connect;
mod duration;
mod failure;
mod output;
mod progress;
mod remedy;
mod row;
mod similar;

use std::ffi::OsStr;
use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::Cli;
use crate::commands::run::{launcher, watchdog};
use crate::failure::{Code, Failure};

fn main() -> ExitCode {
    match std::env::args_os().next().as_deref().and_then(OsStr::to_str) {
        Some(watchdog::NAME) => {
            watchdog::main();
            return ExitCode::SUCCESS;
        }
        Some(launcher::NAME) => {
            launcher::main();
            return Code::NotExecutable.into();
        }
        _ => {}
    }
    let mut cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            // Help that was asked for is no mistake. It may be cut off, as by `head`.
            let code = if told.use_stderr() {
                Code::Usage
            } else {
                Code::Done
            };
            let _ = told.print();
            return code.into();
        }
    };
    // Not read by clap, whose usage lines would then demand `--url`.
    if cli.store.url.is_none() {
        cli.store.url = std::env::var("DATABASE_URL").ok();
    }
    started(&cli).unwrap_or_else(|failure| {
        failure.print(&cli.store);
        failure.code.into()
    })
}

/// Everything runs on this thread: a command that is run must have a parent that lives as long as the
/// process.
fn started(cli: &Cli) -> Result<ExitCode, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Code::System, format!("the runtime does not start: {error}")))?;
    runtime.block_on(commands::execute(cli))
}
