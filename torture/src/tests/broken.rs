//! The checker finds what is wrong with a store that is broken on purpose, and calls it by its name.

use std::sync::{Arc, Once};
use std::time::Duration;

use dblock::store::Store;
use dblock::{InspectFilter, LockManager};
use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::store::{BrokenStore, Flaw};
use crate::check::{Finding, Verdict, check};
use crate::history::{Event, History, Journal, RESOURCE, RUNNER};
use crate::resource::{Resource, ResourceClient};
use crate::run::{QUIET, held_rows};
use crate::seat::Life;
use crate::worker::{Planned, Worker, watch_for_stalls};

const LENGTH: Duration = Duration::from_secs(6);

/// How long the workers go on. Releases that come late show only some seconds later.
fn length(flaw: Flaw) -> Duration {
    if flaw == Flaw::ReleasesLate {
        LENGTH * 3
    } else {
        LENGTH
    }
}

/// So few keys that somebody always waits; more where each is blocked for most of the time.
fn keys(flaw: Flaw) -> usize {
    if flaw == Flaw::ReleasesLate { 12 } else { 2 }
}

/// One test at a time: the good store must not be slow because of the others.
static TURN: Mutex<()> = Mutex::const_new(());

const SEATS: usize = 3;
const TASKS: u64 = 14;

/// Panics that are part of the plan are nobody's news.
fn without_planned_panics() {
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

/// Several managers, each as a process, on one store in memory.
async fn run_on(flaw: Flaw) -> Verdict {
    without_planned_panics();
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::create(&folder.path().join(RUNNER)).unwrap();
    let resource = Resource::listen(Journal::create(&folder.path().join(RESOURCE)).unwrap());
    let resource = resource.await.unwrap();
    let address = resource.address().unwrap();
    let store: Arc<dyn Store> = Arc::new(BrokenStore::new(flaw));
    let acts = async {
        let stop = CancellationToken::new();
        let mut managers = Vec::new();
        let mut workers = Vec::new();
        for seat in 0..SEATS {
            let locks = LockManager::builder(Arc::clone(&store)).start().unwrap();
            managers.push(locks.clone());
            let life = Life { seat, life: 0 };
            let client = ResourceClient::new(address);
            let worker = Worker::new(life, locks, folder.path(), client, None, keys(flaw)).unwrap();
            // Elsewhere it would excuse what is to be found.
            if flaw == Flaw::None {
                watch_for_stalls(Arc::clone(&worker));
            }
            let stop = stop.clone();
            workers.push(tokio::spawn(async move {
                worker.work(seat as u64, TASKS, stop).await;
            }));
        }
        tokio::time::sleep(length(flaw)).await;
        stop.cancel();
        for worker in workers {
            worker.await.unwrap();
        }
        for (seat, locks) in managers.iter().enumerate() {
            locks.shutdown(Duration::from_secs(1)).await;
            journal.write(Event::Ended {
                life: Life { seat, life: 0 },
                code: Some(0),
            });
        }
        tokio::time::sleep(QUIET).await;
        let rows = store.inspect(&InspectFilter::new()).await.unwrap();
        journal.write(Event::Quiet {
            held: held_rows(rows),
        });
    };
    tokio::select! {
        () = acts => {}
        () = resource.serve() => unreachable!(),
    }
    check(&History::read(folder.path()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_wrong_with_a_good_store() {
    let _turn = TURN.lock().await;
    let verdict = run_on(Flaw::None).await;
    assert!(
        verdict.counts.sections > 100,
        "{} sections",
        verdict.counts.sections
    );
    assert_eq!(verdict.findings, []);
}

/// Whether a finding is the one that a flaw is known by.
type Expected = fn(&Finding) -> bool;

/// All at once: most of a run is waiting.
#[tokio::test(flavor = "multi_thread")]
async fn each_flaw_is_found() {
    let _turn = TURN.lock().await;
    let overlap: Expected = |found| matches!(found, Finding::Overlap { .. });
    let flaws: [(Flaw, Expected); 8] = [
        (Flaw::GrantsWhileHeld, overlap),
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
    ];
    let verdicts = join_all(flaws.iter().map(|(flaw, _)| run_on(*flaw))).await;
    for ((flaw, expected), verdict) in flaws.iter().zip(verdicts) {
        assert!(
            verdict.findings.iter().any(expected),
            "{flaw:?}: {:#?}",
            verdict.findings
        );
    }
}
