//! Fail-overs under load: managers that know all servers of a cluster, callers that hold and wait, and
//! servers that are killed, replaced and put back.
//!
//! With synchronous replication no grant may be lost: no owner finds its lease gone, no two enter one key, and
//! tokens grow. No call may hang past the end of its wait.

mod callers;
mod cluster;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use dblock::LockManager;
use fastrand::Rng;
use tokio::time::{Instant, sleep, timeout};

use self::callers::Callers;
use self::cluster::{Cluster, Fault};

/// Far longer than a fail-over takes.
const LONG: Duration = Duration::from_mins(2);

/// The number of managers, each like one of a process of its own.
const MANAGERS: usize = 4;

/// The settings of a run.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The servers.
    #[arg(long, value_enum)]
    store: cluster::Kind,
    /// How many faults there are, one after the other.
    #[arg(long, default_value_t = 15)]
    rounds: u32,
    /// Decides how long each fault lasts, and what the callers do.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// For one kind of fault, the times until a caller that asked at its beginning had the lock: from the beginning,
/// and from when a server took writes again.
#[derive(Debug, Default)]
struct Times {
    since_the_fault: Vec<Duration>,
    since_the_repair: Vec<Duration>,
}

/// Runs on this thread, so that the servers, which are tied to it, live as long as the run.
pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let mut cluster = Cluster::start(arguments.store).await?;
    let probe = LockManager::builder_for_url(&cluster.url(0))?
        .auto_migrate(true)
        .build()
        .await?;
    let mut managers = Vec::new();
    for manager in 0..MANAGERS {
        let url = cluster.url(manager % 3);
        managers.push(LockManager::connect(&url).await?);
    }
    let callers = Callers::start(&managers, arguments.seed);
    let mut rng = Rng::with_seed(arguments.seed);
    let faults = cluster.faults();
    let mut times: Vec<Times> = faults.iter().map(|_| Times::default()).collect();
    for round in 0..arguments.rounds as usize {
        let fault = round % faults.len();
        // Time for the callers to be at work, with leases of different ages.
        sleep(Duration::from_millis(rng.u64(2_000..4_000))).await;
        let (since_the_fault, since_the_repair) =
            one_round(&mut cluster, faults[fault], &probe, round, &mut rng).await?;
        times[fault].since_the_fault.push(since_the_fault);
        times[fault].since_the_repair.push(since_the_repair);
        eprintln!(
            "{:2}. {}: first grant after {since_the_fault:.1?}",
            round + 1,
            faults[fault].name()
        );
    }
    let tally = callers.end().await;
    for manager in managers.iter().chain([&probe]) {
        manager.shutdown(Duration::from_secs(1)).await;
    }
    for (fault, times) in faults.iter().zip(times) {
        println!(
            "{}: {} times; first grant after {}, which is {} after a server took writes again",
            fault.name(),
            times.since_the_fault.len(),
            range(times.since_the_fault),
            range(times.since_the_repair)
        );
    }
    println!("{tally}");
    Ok(if tally.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// One fault, and a caller that asks for a key of its own when the fault begins.
async fn one_round(
    cluster: &mut Cluster,
    fault: Fault,
    probe: &LockManager,
    round: usize,
    rng: &mut Rng,
) -> anyhow::Result<(Duration, Duration)> {
    let lasts = Duration::from_millis(rng.u64(fault.lasts()));
    cluster.begin(fault).await?;
    let begun = Instant::now();
    let locks = probe.clone();
    let asks = tokio::spawn(async move {
        let granted = locks.lock(format!("probe {round}")).wait(LONG).acquire().await;
        granted.map(|guard| (Instant::now(), guard))
    });
    sleep(lasts).await;
    cluster.repair(fault).await?;
    let repaired = Instant::now();
    let granted = timeout(LONG + LONG, asks).await.context("the caller hangs")??;
    let (at, guard) = granted.context("no grant after the fail-over")?;
    guard.release().await?;
    cluster.restore(fault).await?;
    Ok((at - begun, at.saturating_duration_since(repaired)))
}

/// Median, least and largest.
pub(crate) fn range(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    match times[..] {
        [] => "–".to_owned(),
        [first, ..] => {
            let (middle, last) = (times[times.len() / 2], times[times.len() - 1]);
            format!("{middle:.1?} (median; {first:.1?} to {last:.1?})")
        }
    }
}
