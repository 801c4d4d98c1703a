//! `cargo run --example payments`: withdrawals that a payment provider pays, each of them once.
//!
//! Four processes pay the withdrawals of `examples/data` through a payment provider, which is a process of
//! its own. It pays and does not answer, answers late or twice, refuses, and dies. The four are killed too:
//! before they ask the provider, after its answer, and before and after the commit of the booking. A
//! withdrawal that is not booked is tried again. The same is done three times:
//!
//! - with a lock alone: some withdrawals are paid twice,
//! - with `#[run_once]` and `on_crash = "stop"`: after a crash the provider is asked whether it paid,
//! - with `#[run_once]` and `on_crash = "retry"`, for a provider that takes an idempotency key.
//!
//! Books, locks and records are in a SQLite file in a temporary folder, or in a PostgreSQL database whose URL
//! is given. There they get a schema of their own, which is dropped at the end. The exit code is 0 only if
//! every withdrawal was paid once and the books agree.
//!
//! ```text
//! cargo run --example payments                                    # all three, side by side
//! cargo run --example payments -- --only lock                     # or ask, or key
//! cargo run --example payments -- postgres://user@localhost/test
//! ```
//!
//! - [`service`] is how a withdrawal is paid, in each of the three ways: start reading here.
//! - [`books`] is the service's own database, [`ledger`] the input and what must come out of it.
//! - [`provider`] is the payment provider, [`client`] asks it.
//! - [`worker`] is the work of a process, [`round`] starts the processes and kills them, [`process`] is how
//!   they start and end.
//! - [`report`] compares the provider's payments with the books.

mod books;
mod client;
#[path = "../quickstart/ledger.rs"]
mod ledger;
#[path = "../quickstart/process.rs"]
mod process;
mod provider;
mod report;
mod round;
mod service;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use books::Place;
use ledger::Ledger;
use report::Findings;
use service::Way;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (ways, url) = match words[..] {
        [worker::WORKER, ref order @ ..] => return worker::run(order).await,
        [provider::PROVIDER, folder, way] => return provider::run(Path::new(folder), Way::parse(way)?).await,
        [] => (Way::ALL.to_vec(), None),
        ["--only", way] => (vec![Way::parse(way)?], None),
        ["--only", way, url] => (vec![Way::parse(way)?], Some(url)),
        [url] if url.starts_with("postgres") => (Way::ALL.to_vec(), Some(url)),
        _ => bail!("expected `[--only lock|ask|key] [postgres://…]`, but got {arguments:?}"),
    };
    let folder = tempfile::Builder::new().prefix("dblock-payments-").tempdir();
    let folder = folder.context("cannot create a temporary folder")?;
    let schema = format!("dblock_payments_{}", uuid::Uuid::now_v7().simple());
    let place = |way: Way| match url {
        Some(url) => Place::postgres(url, &format!("{schema}_{way}")),
        None => Place::sqlite(&folder.path().join(way.to_string())),
    };
    // When the signal wins, the processes are killed as their owners are dropped.
    let code = tokio::select! {
        code = compare(&ways, folder.path(), &place) => code,
        stop = process::stop_signal() => stop.map(|()| {
            eprintln!("stopped: the processes are ended, the books are removed");
            ExitCode::from(130)
        }),
    };
    for way in ways {
        place(way).remove().await?;
    }
    folder.close().context("cannot remove the temporary folder")?;
    code
}

/// The rounds and the table.
async fn compare(ways: &[Way], folder: &Path, place: &impl Fn(Way) -> Place) -> anyhow::Result<ExitCode> {
    let ledger = Ledger::read()?;
    println!(
        "{} withdrawals from {} accounts, {} processes and a payment provider that cannot be relied on\n",
        ledger.withdrawals.len(),
        ledger.opening.len(),
        round::WORKERS,
    );
    let mut findings = Vec::new();
    for &way in ways {
        let own = folder.join(way.to_string());
        std::fs::create_dir(&own).with_context(|| format!("cannot create {}", own.display()))?;
        let place = place(way);
        let books = place.create(&ledger).await?;
        let events = round::play(way, &own, &place, &books, ledger.withdrawals.len()).await?;
        findings.push(Findings::collect(way, &books, &own, &ledger, events).await?);
    }
    report::print(&findings);
    // The lock is there to be compared with; asked for alone, it is judged too.
    let judged = |found: &&Findings| ways.len() == 1 || found.way != Way::Lock;
    let faults: Vec<String> = findings
        .iter()
        .filter(judged)
        .flat_map(Findings::faults)
        .collect();
    for fault in &faults {
        eprintln!("WRONG {fault}");
    }
    Ok(if faults.is_empty() {
        println!("with #[run_once] every withdrawal was paid once, and the books agree with the provider");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
