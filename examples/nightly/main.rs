//! `cargo run --example nightly`: a nightly job, done once for each night by four processes whose clocks
//! disagree.
//!
//! The clocks are 30 seconds apart, and the job takes less than that. So each process comes to each night
//! when another one is done with it already: a lock alone would do the job four times. Here the tick is in
//! the key of `run_once`, and what is done is remembered. One process is killed in the middle of a job;
//! another one does that job.
//!
//! Everything is in a SQLite file in a temporary folder. The clocks run fast, so it takes some 20 seconds.
//! The exit code is 0 only if there is exactly one report of each night.
//!
//! [`node`] is what each process does: start reading there. The ticks come from the crate `croner`, which
//! also tokio-cron-scheduler uses. It only computes times. A scheduler that calls the job by itself fits as
//! well, if it says for which tick it calls.

mod node;
#[path = "../quickstart/process.rs"]
mod process;

use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use chrono::{DateTime, Utc};
use node::{IN_THE_MIDDLE, NODE, Order};
use process::Process;
use sqlx::SqlitePool;
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// How many seconds the clock of each process is ahead.
const AHEAD: [i64; 4] = [0, 30, 60, 90];

const NIGHTS: usize = 8;

/// The process whose clock is furthest ahead comes first to each night. It is killed in this one.
const VICTIM: usize = 3;
const KILLED_AT: usize = 3;

/// Far longer than all of it takes.
const LIMIT: Duration = Duration::from_mins(5);

/// Neither table keeps anybody from reporting a night twice.
const SCHEMA: &str = "
    CREATE TABLE report (tick TEXT NOT NULL, node INTEGER NOT NULL, attempt INTEGER NOT NULL) STRICT;
    CREATE TABLE seen (tick TEXT NOT NULL, node INTEGER NOT NULL, ran INTEGER NOT NULL) STRICT;";

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {}
        [first, order] if first == NODE => {
            node::run(order).await?;
            return Ok(ExitCode::SUCCESS);
        }
        _ => bail!("this example takes no arguments"),
    }
    let folder = tempfile::Builder::new().prefix("dblock-nightly-").tempdir();
    let folder = folder.context("cannot create a temporary folder")?;
    // When the signal wins, the processes are killed as their owners are dropped.
    let file = folder.path().join("nightly.db");
    let code = tokio::select! {
        code = play(&file) => code?,
        stop = process::stop_signal() => stop.map(|()| ExitCode::from(130))?,
        () = tokio::time::sleep(LIMIT) => bail!("not done after {LIMIT:?}"),
    };
    folder.close().context("cannot remove the temporary folder")?;
    Ok(code)
}

async fn play(file: &Path) -> anyhow::Result<ExitCode> {
    let db = node::open(file).await?;
    sqlx::raw_sql(SCHEMA).execute(&db).await?;
    let locks = dblock::LockManager::builder(&db)
        .auto_migrate(true)
        .build()
        .await?;
    let start = Utc::now();
    println!(
        "{NIGHTS} nights, {} processes with clocks 30 s apart, one SQLite file\n",
        AHEAD.len()
    );
    let mut nodes = (0..AHEAD.len())
        .map(|number| begin(number, file, start))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut victim = nodes.remove(VICTIM);
    kill_in_the_middle(&mut victim).await?;
    for (number, node) in nodes.iter_mut().enumerate() {
        let status = node.child.wait().await.context("cannot wait for a node")?;
        ensure!(status.success(), "node {number} ended with {status}");
    }
    locks.shutdown(Duration::from_secs(1)).await;
    let faults = judge(&db, start).await?;
    for fault in &faults {
        eprintln!("WRONG {fault}");
    }
    Ok(if faults.is_empty() {
        println!("\nthe job was done exactly once for each night");
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn begin(number: usize, file: &Path, start: DateTime<Utc>) -> anyhow::Result<Process> {
    let order = Order {
        number: i64::try_from(number)?,
        file: file.to_owned(),
        start,
        ahead: AHEAD[number],
        nights: NIGHTS,
        stops_at: (number == VICTIM).then_some(KILLED_AT),
    };
    let arguments = [NODE.to_owned(), serde_json::to_string(&order)?];
    process::start(&arguments, |command| {
        command.stdout(Stdio::piped());
    })
}

/// Waits until the node is in the middle of the job, and kills it there.
async fn kill_in_the_middle(victim: &mut Process) -> anyhow::Result<()> {
    let output = victim.child.stdout.take().context("its output is piped")?;
    let line = BufReader::new(output).lines().next_line().await?;
    ensure!(
        line.as_deref() == Some(IN_THE_MIDDLE),
        "node {VICTIM} ended before it could be killed"
    );
    // SIGKILL: nothing of the process runs any more, so nothing is released.
    victim.child.kill().await.context("cannot kill a node")?;
    println!("killed node {VICTIM} in the middle of a job: its lock is free after the ttl of 2 s\n");
    Ok(())
}

/// Returns what is wrong. Prints who has done the job of which night.
async fn judge(db: &SqlitePool, start: DateTime<Utc>) -> anyhow::Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut again = 0;
    for tick in node::ticks(start, NIGHTS)? {
        let tick = node::name(tick);
        let reports: Vec<(i64, i64)> = sqlx::query_as("SELECT node, attempt FROM report WHERE tick = $1")
            .bind(&tick)
            .fetch_all(db)
            .await?;
        let told: i64 = sqlx::query_scalar("SELECT count(*) FROM seen WHERE tick = $1 AND NOT ran")
            .bind(&tick)
            .fetch_one(db)
            .await?;
        match reports[..] {
            [(node, attempt)] => {
                println!("{tick}: done by node {node}, attempt {attempt}; {told} others found it done");
                again += i64::from(attempt > 1);
            }
            _ => faults.push(format!("{tick}: {} reports", reports.len())),
        }
        // All but the one that did it, and the one that is dead.
        if !(2..=3).contains(&told) {
            faults.push(format!("{tick}: {told} nodes found it done"));
        }
    }
    let all: i64 = sqlx::query_scalar("SELECT count(*) FROM report")
        .fetch_one(db)
        .await?;
    if usize::try_from(all)? != NIGHTS {
        faults.push(format!("{all} reports of {NIGHTS} nights"));
    }
    if again != 1 {
        faults.push(format!(
            "{again} nights needed a second attempt, and one process was killed"
        ));
    }
    Ok(faults)
}
