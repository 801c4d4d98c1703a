//! The checker finds records that are broken on purpose.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::{
    Outcome, Record, RecordChange, RecordEntry, RecordState, RecordWrite, Records, Request, Store,
    StoreError, StoreFuture,
};
use dblock::{Key, LockManager};
use dblock_tests::around::{Around, Between};
use fastrand::Rng;
use futures_util::future::join_all;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::bank::Bank;
use crate::check::{Finding, OnceFault, Verdict, check};
use crate::history::{Event, History, Journal, RESOURCE, RUNNER};
use crate::process_id::ProcessId;
use crate::resource::ResourceClient;
use crate::worker::{Worker, finish_runs};

/// How records can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    None,
    /// Every fifth outcome is confirmed and not written.
    LosesOutcomes,
    /// A failure is written again after a later attempt has succeeded.
    WritesTwice,
    /// Every fifth read of a processing record deletes it.
    ForgetsProcessing,
    /// Every fifth read of a succeeded record deletes it.
    ForgetsSuccess,
}

/// Breaks the records of a store.
#[derive(Debug)]
struct BrokenRecords {
    flaw: Flaw,
    count: AtomicU64,
    /// The failures that are to be written again, by key.
    failures: Mutex<HashMap<String, RecordEntry>>,
    /// How often a store of this test has gone wrong.
    wrongs: watch::Sender<u32>,
}

impl BrokenRecords {
    fn every_fifth(&self) -> bool {
        let chosen = self.count.fetch_add(1, Ordering::Relaxed) % 5 == 4;
        if chosen {
            self.goes_wrong();
        }
        chosen
    }

    fn goes_wrong(&self) {
        self.wrongs.send_modify(|wrongs| *wrongs += 1);
    }

    /// Whether the change is left out.
    fn loses(&self, key: &Key, change: &RecordChange) -> bool {
        let RecordChange::Replace(_, entry) = change else {
            return false;
        };
        if self.flaw == Flaw::WritesTwice && entry.state == RecordState::Failed {
            let key = key.as_str().to_owned();
            self.failures.lock().unwrap().insert(key, entry.clone());
        }
        self.flaw == Flaw::LosesOutcomes && entry.state != RecordState::Processing && self.every_fifth()
    }

    async fn read(&self, records: &dyn Records, key: &Key) -> Result<Option<Record>, StoreError> {
        let state = records.read(key).await?.map(|record| record.state);
        let forgotten = match self.flaw {
            Flaw::ForgetsProcessing => Some(RecordState::Processing),
            Flaw::ForgetsSuccess => Some(RecordState::Succeeded),
            _ => None,
        };
        if state.is_some() && state == forgotten && self.every_fifth() {
            delete(records, key).await?;
        }
        let is_late = self.flaw == Flaw::WritesTwice && state == Some(RecordState::Succeeded);
        let late = is_late.then(|| self.failures.lock().unwrap().remove(key.as_str()));
        if let Some(entry) = late.flatten() {
            self.goes_wrong();
            delete(records, key).await?;
            let again = RecordWrite::new(key.clone(), RecordChange::Insert(entry));
            records.write(&again).await?;
        }
        records.read(key).await
    }
}

async fn delete(records: &dyn Records, key: &Key) -> Result<(), StoreError> {
    if let Some(found) = records.read(key).await? {
        let write = RecordWrite::new(key.clone(), RecordChange::Delete(found.version()));
        records.write(&write).await?;
    }
    Ok(())
}

impl Between for BrokenRecords {
    fn apply<'a>(
        &'a self,
        store: &'a dyn Store,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        let mut requests = requests.to_vec();
        for request in &mut requests {
            let key = &request.key;
            request.record.take_if(|change| self.loses(key, change));
        }
        Box::pin(async move { store.apply(&requests).await })
    }

    fn read_all<'a>(
        &'a self,
        records: &'a dyn Records,
        keys: &'a [Key],
    ) -> StoreFuture<'a, Vec<Result<Option<Record>, StoreError>>> {
        Box::pin(async move {
            let mut found = Vec::new();
            for key in keys {
                found.push(self.read(records, key).await);
            }
            found
        })
    }

    fn write<'a>(
        &'a self,
        records: &'a dyn Records,
        write: &'a RecordWrite,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        if self.loses(&write.key, &write.change) {
            return Box::pin(std::future::ready(Ok(true)));
        }
        records.write(write)
    }
}

const SLOTS: usize = 3;
const TASKS: u64 = 4;
/// How long calls go on at least, and how long at most until enough has gone wrong.
const LENGTH: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_mins(5);
/// How often records go wrong before the checker must find it.
const WRONGS: u32 = 10;

/// Several managers, each as a process, on one SQLite file with broken records.
async fn run_on(flaw: Flaw) -> Verdict {
    super::broken::without_planned_panics();
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::create(&folder.path().join(RUNNER)).unwrap();
    Journal::create(&folder.path().join(RESOURCE)).unwrap();
    let file = folder.path().join("once.db");
    let bank = Bank::at(&format!("sqlite://{}", file.display()), Duration::from_secs(5)).unwrap();
    bank.open().await.unwrap();
    let (wrongs, mut wrong) = watch::channel(0);
    let manager = || {
        let options = SqliteConnectOptions::new().filename(&file);
        let inner = dblock::open::sqlite::open(options, "distributed_lock").unwrap();
        let broken = BrokenRecords {
            flaw,
            count: AtomicU64::new(0),
            failures: Mutex::default(),
            wrongs: wrongs.clone(),
        };
        let store: Arc<dyn Store> = Around::new(inner, broken);
        LockManager::builder(store).auto_migrate(true).build()
    };
    let stop = CancellationToken::new();
    let (mut managers, mut tasks) = (Vec::new(), Vec::new());
    for slot in 0..SLOTS {
        let locks = manager().await.unwrap();
        managers.push(locks.clone());
        let nobody = ResourceClient::new(([127, 0, 0, 1], 9).into());
        let process = ProcessId::first(slot);
        let worker = Worker::new(process, locks, folder.path(), nobody, Some(bank.clone()), 1).unwrap();
        for task in 0..TASKS {
            let worker = Arc::clone(&worker);
            let rng = Rng::with_seed(slot as u64 * TASKS + task);
            let work = worker.go_on_with_runs(rng);
            tasks.push(tokio::spawn(stop.clone().run_until_cancelled_owned(work)));
        }
    }
    tokio::time::sleep(LENGTH).await;
    if flaw != Flaw::None {
        let enough = wrong.wait_for(|wrongs| *wrongs >= WRONGS);
        timeout(TIMEOUT, enough)
            .await
            .expect("enough goes wrong in time")
            .unwrap();
    }
    stop.cancel();
    for task in tasks {
        assert_eq!(task.await.unwrap(), None);
    }
    for locks in &managers {
        locks.shutdown(Duration::from_secs(1)).await;
    }
    let locks = manager().await.unwrap();
    let ends = finish_runs(&locks, &bank, &journal).await.unwrap();
    journal.write(Event::OnceEnds { ends });
    let held = Vec::new();
    journal.write(Event::Quiet { held });
    check(&History::read(folder.path()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_flaw_of_records_is_found() {
    let flaws: [(Flaw, &[OnceFault]); 5] = [
        (Flaw::None, &[]),
        (Flaw::LosesOutcomes, &[OnceFault::ResultLost]),
        (Flaw::WritesTwice, &[OnceFault::AttemptTwice]),
        (Flaw::ForgetsProcessing, &[OnceFault::AttemptTwice]),
        (
            Flaw::ForgetsSuccess,
            &[OnceFault::DoneTooOften, OnceFault::AttemptTwice],
        ),
    ];
    let verdicts = join_all(flaws.iter().map(|(flaw, _)| run_on(*flaw))).await;
    for ((flaw, expected), verdict) in flaws.iter().zip(verdicts) {
        let found = verdict.findings.iter().map(|found| match found {
            Finding::Once { fault, .. } => Ok(*fault),
            other => Err(other.to_string()),
        });
        let found: Vec<_> = found.collect();
        let names: BTreeSet<String> = found.iter().map(|fault| format!("{fault:?}")).collect();
        let runs = verdict.once.called;
        assert!(runs > 20, "{flaw:?}: {runs} runs");
        if expected.is_empty() {
            assert_eq!(found, [], "{flaw:?}");
        }
        for fault in *expected {
            assert!(found.contains(&Ok(*fault)), "{flaw:?}: {names:?}");
        }
    }
}
