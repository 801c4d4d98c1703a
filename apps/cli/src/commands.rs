//! The subcommands.

mod doctor;
mod list;
mod operators;
mod records;
pub(crate) mod run;
mod serve;
mod shell;
mod show;
mod watch;

use std::process::ExitCode;

use crate::cli::{Cli, Command};
use crate::connect;
use crate::failure::Failure;

pub(crate) async fn execute(cli: &Cli) -> Result<ExitCode, Failure> {
    let done = carry_out(cli).await;
    connect::close().await;
    done
}

async fn carry_out(cli: &Cli) -> Result<ExitCode, Failure> {
    let store = &cli.store;
    let code = match &cli.command {
        Command::Run(arguments) => run::run(store, arguments).await?,
        Command::Ls(arguments) => list::list(store, arguments).await?,
        Command::Show { key } => show::show(store, key).await?,
        Command::Watch(arguments) => watch::watch(store, arguments).await?,
        Command::Doctor => doctor::doctor(store).await?,
        Command::Revoke { key } => operators::revoke(store, key).await?,
        Command::ForceRelease { key, yes } => operators::force_release(store, key, *yes).await?,
        Command::Purge { idle, yes } => operators::purge(store, *idle, *yes).await?,
        Command::Migrate => operators::migrate(store).await?,
        Command::Records(command) => records::records(store, command).await?,
        Command::Serve(arguments) => serve::serve(store, arguments).await?,
        Command::Completions { shell } => shell::completions(*shell)?,
        Command::Man { folder } => shell::man(folder.as_deref())?,
    };
    Ok(code.into())
}
