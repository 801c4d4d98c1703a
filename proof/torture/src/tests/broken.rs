//! The checker finds the flaw of each store that is broken on purpose, with the right finding.

use std::path::Path;
use std::sync::{Arc, Once};
use std::time::Duration;

use dblock::store::Store;
use dblock::{InspectFilter, LockManager};
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::flaw::Flaw;
use super::store::{BrokenStore, in_memory};
use crate::bank::Bank;
use crate::check::{Finding, RECOVERY, Verdict, check};
use crate::history::{Event, History, Journal, RESOURCE, RUNNER, now};
use crate::process_id::ProcessId;
use crate::resource::{Resource, ResourceClient};
use crate::run::{QUIET, held_rows};
use crate::worker::{Planned, Worker, watch_for_stalls};

const LENGTH: Duration = Duration::from_secs(6);

/// By then a hung store must have failed its callers, and every lease be over.
const DEAD_FROM: Duration = Duration::from_secs(8);

/// How long the workers go on. Some flaws show only after some seconds.
fn length(flaw: Flaw) -> Duration {
    match flaw {
        Flaw::ReleasesLate | Flaw::ForgetsWaiters => LENGTH * 3,
        Flaw::None | Flaw::NoneTelling | Flaw::LosesMoney | Flaw::Hangs => LENGTH * 2,
        _ => LENGTH,
    }
}

/// When the recovery is over.
fn healthy_from(flaw: Flaw) -> Duration {
    if flaw == Flaw::Hangs {
        DEAD_FROM
    } else {
        Duration::ZERO
    }
}

/// A bank in a file, under the locks of the store in memory.
async fn bank(flaw: Flaw, folder: &Path) -> Option<Bank> {
    if flaw != Flaw::LosesMoney {
        return None;
    }
    let url = format!("sqlite://{}", folder.join("bank.db").display());
    let bank = Bank::at(&url, Duration::from_secs(5)).unwrap();
    bank.open().await.unwrap();
    Some(bank)
}

/// So few keys that some caller always waits; more for flaws that block each key most of the time.
fn keys(flaw: Flaw) -> usize {
    if matches!(flaw, Flaw::ReleasesLate | Flaw::ForgetsWaiters) {
        12
    } else {
        2
    }
}

/// One test at a time: the good store must not be slow because of the others.
pub(super) static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

const SLOTS: usize = 3;
const TASKS: u64 = 14;

/// Prints no panic that is part of a plan.
pub(super) fn without_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !panic.payload().is::<Planned>() {
                report(panic);
            }
        }));
    });
}

/// On a store in memory.
async fn run_on(flaw: Flaw) -> Verdict {
    let store = in_memory(flaw);
    run_over(flaw, || Arc::clone(&store)).await
}

/// Several managers, each as a process, on the rows of one store; `open` opens it once more.
pub(super) async fn run_over(flaw: Flaw, open: impl Fn() -> Arc<dyn Store>) -> Verdict {
    without_planned_panics();
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::create(&folder.path().join(RUNNER)).unwrap();
    let resource = Resource::listen(Journal::create(&folder.path().join(RESOURCE)).unwrap());
    let resource = resource.await.unwrap();
    let address = resource.address().unwrap();
    let stores = BrokenStore::of_slots(flaw, SLOTS, &open);
    let bank = bank(flaw, folder.path()).await;
    let healthy_from = now() + i64::try_from(healthy_from(flaw).as_nanos()).unwrap();
    journal.write_at(healthy_from - RECOVERY, Event::Calm);
    let acts = async {
        let stop = CancellationToken::new();
        let mut managers = Vec::new();
        let mut workers = Vec::new();
        for (slot, store) in stores.iter().enumerate() {
            let store: Arc<dyn Store> = store.clone();
            // One of them without local hand-over.
            let locks = LockManager::builder(store)
                .hand_over(slot != 1)
                .build_lazy()
                .unwrap();
            managers.push(locks.clone());
            let process = ProcessId::first(slot);
            let client = ResourceClient::new(address);
            let worker =
                Worker::new(process, locks, folder.path(), client, bank.clone(), keys(flaw)).unwrap();
            // With a flaw a stall would excuse what is to be found.
            if matches!(flaw, Flaw::None | Flaw::NoneTelling) {
                watch_for_stalls(Arc::clone(&worker));
            }
            let stop = stop.clone();
            workers.push(tokio::spawn(async move {
                worker.work(slot as u64, TASKS, stop).await;
            }));
        }
        tokio::time::sleep(length(flaw)).await;
        stop.cancel();
        for worker in workers {
            worker.await.unwrap();
        }
        for (slot, locks) in managers.iter().enumerate() {
            locks.shutdown(Duration::from_secs(1)).await;
            journal.write(Event::Ended {
                process: ProcessId::first(slot),
                code: Some(0),
            });
        }
        tokio::time::sleep(QUIET).await;
        let rows = open().inspect(&InspectFilter::new()).await.unwrap();
        journal.write(Event::Quiet {
            held: held_rows(rows),
        });
        if let Some(bank) = bank {
            let (accounts, transfers) = bank.close().await.unwrap();
            journal.write(Event::Bank { accounts, transfers });
        }
    };
    tokio::select! {
        () = acts => {}
        () = resource.serve() => unreachable!(),
    }
    check(&History::read(folder.path()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_a_good_store() {
    let _alone = ONE_AT_A_TIME.lock().await;
    for flaw in [Flaw::None, Flaw::NoneTelling] {
        let verdict = run_on(flaw).await;
        let sections = verdict.counts.sections;
        assert!(sections > 100, "{flaw:?}: {sections} sections");
        assert_eq!(verdict.findings, [], "{flaw:?}");
    }
}

/// Whether a finding is the one that a flaw is known by.
type Expected = fn(&Finding) -> bool;

/// All at once: most of a run is waiting.
#[tokio::test(flavor = "multi_thread")]
async fn each_flaw_is_found() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let overlap: Expected = |found| matches!(found, Finding::Overlap { .. });
    let fits_no_order: Expected = |found| matches!(found, Finding::NotLinearizable(_));
    let flaws: [(Flaw, Expected); 18] = [
        (Flaw::GrantsWhileHeld, overlap),
        (Flaw::GrantsWhileHeld, fits_no_order),
        (Flaw::ReleasesAnyLease, fits_no_order),
        (Flaw::RevivesExpired, fits_no_order),
        (Flaw::LosesCommits, fits_no_order),
        (Flaw::FallingTokens, fits_no_order),
        (Flaw::LosesMoney, |found| matches!(found, Finding::MoneyLost(_))),
        (Flaw::ReleasesAnyLease, overlap),
        (Flaw::RevivesExpired, overlap),
        (Flaw::LosesCommits, overlap),
        (Flaw::CoarseTokens, |found| {
            matches!(found, Finding::TokenReused { .. })
        }),
        (Flaw::FallingTokens, |found| {
            matches!(found, Finding::TokenFell { .. })
        }),
        (Flaw::ReleasesLate, |found| {
            matches!(found, Finding::BusyAfterRelease { .. })
        }),
        (Flaw::KeepsReleased, |found| {
            matches!(found, Finding::HeldAtTheEnd(_))
        }),
        (Flaw::PassesOnTwice, |found| {
            matches!(found, Finding::TokenReused { .. })
        }),
        (Flaw::PassesOnToTheDead, |found| {
            matches!(found, Finding::HeldByNobody { .. })
        }),
        (Flaw::ForgetsWaiters, |found| {
            matches!(found, Finding::Starved { .. })
        }),
        (Flaw::Hangs, |found| matches!(found, Finding::Dead { .. })),
    ];
    let missed = join_all(flaws.map(|(flaw, expected)| missed_on(flaw, expected))).await;
    let missed: Vec<_> = missed.into_iter().flatten().collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// On a busy machine a run may do too little for its flaw to show.
const RUNS: usize = 10;

/// The sections and the findings of the last run, if none had the expected one.
async fn missed_on(flaw: Flaw, expected: Expected) -> Option<(Flaw, usize, Vec<String>)> {
    let mut missed = None;
    for _ in 0..RUNS {
        let verdict = run_on(flaw).await;
        if verdict.findings.iter().any(expected) {
            return None;
        }
        let found = verdict.findings.iter().take(5).map(ToString::to_string);
        missed = Some((flaw, verdict.counts.sections, found.collect()));
    }
    missed
}
