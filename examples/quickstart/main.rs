//! `cargo run --example quickstart`: what a lost update costs, and what one attribute does about it.
//!
//! A few hundred withdrawals (`examples/data`) are booked by four OS processes, twice: first without a lock,
//! then with `#[distributed_lock]`. Each booking reads a balance, thinks, and writes the balance back. In
//! the second round one of the processes is killed with SIGKILL while it is inside of a lock.
//!
//! Accounts, withdrawals and locks are in one SQLite file in a temporary folder. No server, nothing to
//! install, nothing left behind.
//!
//! - [`worker`] is what a process does. The attribute is there: start reading here.
//! - [`bank`] is the SQLite file, [`ledger`] the input and what must come out of it.
//! - [`round`] starts the processes, kills one and waits for the rest; [`process`] is how they start and end.
//! - [`report`] finds overlaps and lost updates, and prints the table.

mod bank;
mod ledger;
mod process;
mod report;
mod round;
mod worker;

use std::process::ExitCode;

use anyhow::Context as _;

use ledger::Ledger;
use process::stop_signal;
use report::Findings;
use round::Mode;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(order) = worker::Order::from_arguments(&arguments) {
        return worker::run(order?).await.map(|()| ExitCode::SUCCESS);
    }
    if let Some(unknown) = arguments.first() {
        anyhow::bail!("the quickstart takes no arguments, but got {unknown:?}");
    }
    // When the signal wins, the processes are killed and the folder is removed as their owners are dropped.
    tokio::select! {
        code = compare() => code,
        stop = stop_signal() => {
            stop?;
            eprintln!("stopped: the processes are ended and the temporary folder is removed");
            Ok(ExitCode::from(130))
        }
    }
}

/// Both rounds and the table.
async fn compare() -> anyhow::Result<ExitCode> {
    let ledger = Ledger::read()?;
    let folder = tempfile::Builder::new()
        .prefix("dblock-quickstart-")
        .tempdir()
        .context("cannot create a temporary folder")?;
    println!(
        "{} withdrawals from {} accounts, {} processes, one SQLite file in {}\n",
        ledger.withdrawals.len(),
        ledger.opening.len(),
        round::WORKERS,
        folder.path().display()
    );
    let without = play(&ledger, folder.path(), Mode::WithoutLock).await?;
    let with = play(&ledger, folder.path(), Mode::WithLock).await?;
    report::print(&without, &with);

    folder.close().context("cannot remove the temporary folder")?;
    let faults = with.faults();
    for fault in &faults {
        eprintln!("WRONG with the lock: {fault}");
    }
    Ok(if faults.is_empty() {
        println!("every balance is exactly that of booking the file one by one");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One round from the opening balances to what came out.
async fn play(ledger: &Ledger, folder: &std::path::Path, mode: Mode) -> anyhow::Result<Findings> {
    let file = folder.join(mode.file_name());
    let pool = bank::create(&file, ledger).await?;
    let time = round::play(&file, &pool, ledger.withdrawals.len(), mode).await?;
    let findings = Findings::collect(&pool, ledger, time).await?;
    pool.close().await;
    Ok(findings)
}
