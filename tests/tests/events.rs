//! The log: the events of a lock's life, with the field names that people search for.
//!
//! A process of its own, because the subscriber is global: the engine logs from another thread.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use dblock::optimistic::StaleVersion;
use dblock::store::StoreErrorKind;
use dblock::store::clock::Timestamp;
use dblock::{
    InspectFilter, LockError, LockManager, LockOptions, OnCrash, Run, RunOptions, optimistic_retry,
};
use dblock_servers::pgbouncer::Setup;
use dblock_tests::Backend;
use dblock_tests::backend::eventually;
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};
use dblock_tests::own_server::pgbouncer;
use tokio::time::{Instant, sleep};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// An event: its message and its fields.
type Seen = BTreeMap<String, String>;

#[derive(Clone, Default)]
struct Events(Arc<Mutex<Vec<Seen>>>);

struct Fields<'a>(&'a mut Seen);

impl Visit for Fields<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut seen = Seen::new();
        event.record(&mut Fields(&mut seen));
        self.0.lock().unwrap().push(seen);
    }
}

impl Events {
    /// Those of this process.
    fn all() -> Self {
        static ALL: OnceLock<Events> = OnceLock::new();
        let install = || {
            let events = Self::default();
            let subscriber = tracing_subscriber::registry().with(events.clone());
            tracing::subscriber::set_global_default(subscriber).unwrap();
            events
        };
        ALL.get_or_init(install).clone()
    }

    /// How many events have this in their message.
    fn count(&self, message: &str) -> usize {
        let events = self.0.lock().unwrap();
        let has_it = |seen: &&Seen| seen.get("message").is_some_and(|found| found.contains(message));
        events.iter().filter(has_it).count()
    }

    /// As [`count`](Self::count), of those about `key`.
    fn count_about(&self, key: &str, message: &str) -> usize {
        let events = self.0.lock().unwrap();
        let has_it = |seen: &&Seen| {
            seen.get("key").is_some_and(|found| found == key) && seen["message"].starts_with(message)
        };
        events.iter().filter(has_it).count()
    }

    fn find(&self, key: &str, message: &str) -> Option<Seen> {
        let events = self.0.lock().unwrap();
        let about = |seen: &&Seen| seen.get("key").is_some_and(|found| found == key);
        let found = events
            .iter()
            .filter(about)
            .find(|seen| seen["message"].starts_with(message));
        found.cloned()
    }

    /// The first event about `key` with this message; it must have these fields. The engine's thread may be
    /// about to write it.
    fn expect(&self, key: &str, message: &str, fields: &[&str]) -> Seen {
        let since = std::time::Instant::now();
        let seen = loop {
            if let Some(seen) = self.find(key, message) {
                break seen;
            }
            let events = self.0.lock().unwrap().clone();
            assert!(
                since.elapsed() < Duration::from_secs(5),
                "no {message:?} about {key:?} in {events:#?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        };
        for field in fields {
            assert!(seen.contains_key(*field), "{field} is missing in {seen:?}");
        }
        seen
    }
}

/// Nobody else may learn of it: the caller is gone.
#[tokio::test]
async fn a_run_in_doubt_is_in_the_log() {
    let events = Events::all();
    let backend = Backend::new(dblock_tests::Kind::Sqlite).await.unwrap();
    let locks = backend.manager().await;
    let day = Duration::from_hours(24);
    let run = |on_crash| RunOptions::new(day, on_crash);
    let becomes = "a run is in doubt";
    for key in ["goes away", "panics", "knows nothing", "pays", "declines"] {
        let (inside, mut entered) = tokio::sync::mpsc::unbounded_channel();
        let (locks, options) = (locks.clone(), run(OnCrash::Stop));
        let call = tokio::spawn(async move {
            let body = async |run: Run| {
                inside.send(()).unwrap();
                match key {
                    "goes away" => std::future::pending().await,
                    "panics" => panic!("the body"),
                    "knows nothing" => run.leave_in_doubt(),
                    "pays" => return Ok(()),
                    _ => {}
                }
                Err(LockError::NoManager)
            };
            locks.run_once(key, options, body).await
        });
        entered.recv().await.unwrap();
        if key == "goes away" {
            call.abort();
        }
        let _ = call.await;
        let told = events.count_about(key, becomes);
        assert_eq!(told, usize::from(!["pays", "declines"].contains(&key)), "{key}");
    }
    assert_eq!(events.expect("goes away", becomes, &[])["attempt"], "1");
    backend.until_free("goes away").await;
    let again = locks.run_once("goes away", run(OnCrash::Stop), async |_| Ok::<_, LockError>(()));
    again.await.unwrap_err();
    let found = events.expect("goes away", "a run is still in doubt", &["holder"]);
    assert_eq!(found["attempt"], "1");
    // It may be repeated, so nobody has to decide.
    let crash = locks.run_once("again", run(OnCrash::Retry), async |run: Run| {
        run.leave_in_doubt();
        Err::<(), _>(LockError::NoManager)
    });
    crash.await.unwrap_err();
    assert_eq!(events.count_about("again", becomes), 0);
    backend.clean_up().await;
}

#[tokio::test]
async fn a_locks_life_is_in_the_log() {
    let events = Events::all();
    let backend = Backend::new(dblock_tests::Kind::Sqlite).await.unwrap();
    let (locks, other) = (backend.manager().await, backend.manager().await);

    nested(&locks, &other).await;
    let owner = events.expect("life", "lock acquired", &["fence_token", "waited"])["owner"].clone();
    assert_eq!(
        events.expect("life", "lock re-entered", &["fence_token", "waited"])["owner"],
        owner
    );
    assert_eq!(
        events.expect("life", "lock released", &["fence_token", "held"])["owner"],
        owner
    );
    events.expect("life", "lock busy", &["owner", "waited", "holder"]);

    let lost = locks
        .lock("freed")
        .ttl(Duration::from_secs(1))
        .acquire()
        .await
        .unwrap();
    other.admin().force_release("freed").await.unwrap();
    lost.lost().await;
    events.expect("freed", "freeing a lock by force", &[]);
    events.expect("freed", "lock lost", &["owner", "fence_token", "held", "reason"]);

    backend.die_inside("left", Duration::from_secs(1)).await;
    let taken = locks
        .lock("left")
        .wait(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    let takeover = events.expect("left", "lock taken over", &["former_owner", "former_holder"]);
    assert_eq!(takeover["fence_token"], taken.fence_token().to_string());
}

async fn nested(locks: &LockManager, other: &LockManager) {
    let inner = async {
        locks.lock("life").run(async {}).await.unwrap();
        other.lock("life").acquire().await.unwrap_err();
    };
    locks.lock("life").run(inner).await.unwrap();
}

/// The lock of a job that is to run once an hour is not taken for that of a process that died.
/// Also where the store answers with nonsense, and a request is told to the log for that.
#[tokio::test(start_paused = true)]
async fn the_secret_of_a_ticket_is_in_no_event() {
    let events = Events::all();
    let store = FaultyStore::memory();
    let locks = store.manager();
    let guard = locks.lock("secret").acquire().await.unwrap();
    let nonsense = || Fault::Answer(dblock::store::Outcome::Withdrawn);
    store.next(Kind::Transfer, nonsense());
    let ticket = guard.into_ticket(Duration::from_mins(1)).await.unwrap();
    for fault in [nonsense(), Fault::ReplyLost] {
        store.next(Kind::Transfer, fault);
    }
    let guard = locks.adopt(&ticket).await.unwrap();
    locks.adopt(&ticket).await.unwrap_err();
    guard.release().await.unwrap();
    let secret = ticket.secret();
    let lease: uuid::Uuid = secret.split('.').nth(1).unwrap().parse().unwrap();
    let told = events.0.lock().unwrap().clone();
    assert!(
        told.iter().any(|seen| format!("{seen:?}").contains("Transfer")),
        "{told:?}"
    );
    for form in [lease.to_string(), lease.simple().to_string()] {
        assert!(!format!("{told:?}").contains(&form), "{told:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_is_kept_busy_is_no_takeover() {
    let (events, store) = (Events::all(), FaultyStore::memory());
    let (locks, other) = (store.manager(), store.other_process());
    let options = LockOptions::new().ttl(Duration::from_secs(30));
    for seconds in [1, 29, 30, 31, 3600] {
        let (key, length) = (format!("each {seconds} s"), Duration::from_secs(seconds));
        let started = Instant::now();
        let once = options.clone().hold_min(length);
        locks.lock(&key).options(&once).run(async {}).await.unwrap();
        let next = options.clone().wait(length * 2);
        other.lock(&key).options(&next).run(async {}).await.unwrap();
        let after = started.elapsed();
        assert!(
            (length..length + Duration::from_secs(1)).contains(&after),
            "{after:?}"
        );
        events.expect(&key, "lock released", &[]);
        for message in ["lock taken over", "lock was gone"] {
            assert_eq!(events.count_about(&key, message), 0, "{key}: {message}");
        }
    }
}

/// An outage is told once for each lease, however often its renewal is tried, and so is its end. The error
/// has the time at which the lease ended, whenever it is asked for.
#[tokio::test(start_paused = true)]
async fn an_outage_is_told_once() {
    let (events, store) = (Events::all(), FaultyStore::memory());
    let locks = store.manager();
    let options = LockOptions::new().ttl(Duration::from_secs(30));
    let guard = locks.lock("outage").options(&options).acquire().await.unwrap();
    for times in 1..3 {
        store.always(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
        sleep(Duration::from_secs(20)).await;
        store.heal();
        sleep(Duration::from_secs(20)).await;
        assert_eq!(events.count_about("outage", "lock could not be renewed"), times);
        assert_eq!(events.count_about("outage", "lock renewed again"), times);
        assert!(events.count_about("outage", "lock still could not be renewed") > times);
    }
    store.always(Kind::Extend, Fault::Fail(StoreErrorKind::Unreachable));
    guard.lost().await;
    let held = async || match guard.enter(async {}).await {
        Err(LockError::Lost { held, .. }) => held,
        other => panic!("{other:?}"),
    };
    let at_the_end = held().await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(held().await, at_the_end);
}

/// Each outage during a campaign is told once, however long it takes, and so is each begin of a leader's
/// term.
#[tokio::test(start_paused = true)]
async fn an_outage_during_a_campaign_is_told_once() {
    let (events, store) = (Events::all(), FaultyStore::memory());
    let (locks, other) = (store.manager(), store.other_process());
    let guard = other.lock("campaign").acquire().await.unwrap();
    let leads = locks.lock("campaign").lead(async |_| ());
    let weather = async {
        for times in 1..3 {
            store.always(Kind::Acquire, Fault::Fail(StoreErrorKind::Unreachable));
            sleep(Duration::from_mins(1)).await;
            store.heal();
            sleep(Duration::from_mins(1)).await;
            assert_eq!(events.count_about("campaign", "the lock store fails"), times);
        }
        assert_eq!(events.count_about("campaign", "leading"), 0);
        guard.release().await.unwrap();
    };
    let (led, ()) = tokio::join!(leads, weather);
    led.unwrap();
    events.expect("campaign", "the lock store fails", &["failing_for", "error"]);
    events.expect("campaign", "leading", &["fence_token"]);
    assert_eq!(events.count_about("campaign", "leading"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_is_in_the_log_once_and_waiters_poll() {
    const LONG: Duration = Duration::from_secs(30);
    let (events, messages) = (
        Events::all(),
        ["a connection pooler", "releases by other processes are not heard"],
    );
    for (times, setup) in [(1, Setup::Refuses), (2, Setup::Swallows)] {
        let Some(bouncer) = pgbouncer(setup).await else {
            return;
        };
        let table = format!("pooled_{}", uuid::Uuid::now_v7().simple());
        let builder = || LockManager::builder_for_url(bouncer.url()).unwrap().table(&table);
        let locks = builder().auto_migrate(true).build().await.unwrap();
        let direct = LockManager::builder_for_url(&dblock_tests::postgres_url().unwrap()).unwrap();
        let direct = direct.table(&table).build().await.unwrap();
        for _ in 0..3 {
            let options = LockOptions::new().ttl(LONG).wait(LONG);
            let held = direct.lock("key").options(&options).acquire().await.unwrap();
            let release = async {
                // Only once somebody waits does it matter how he learns of the release.
                while direct
                    .admin()
                    .list(InspectFilter::new())
                    .await
                    .unwrap()
                    .iter()
                    .all(|row| row.wanted_until == Timestamp::EPOCH)
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                held.release().await.unwrap();
            };
            let (waited, ()) = tokio::join!(locks.lock("key").options(&options).acquire(), release);
            waited.unwrap().release().await.unwrap();
            // An operator's call opens a connection each time.
            locks.admin().list(InspectFilter::new()).await.unwrap();
        }
        // Listening begins in the background.
        let counted = || messages.iter().all(|message| events.count(message) >= times);
        eventually("both are in the log", counted).await;
        assert_eq!(
            messages.map(|message| events.count(message)),
            [times; 2],
            "{setup:?}"
        );
    }
}

#[optimistic_retry(times = 3)]
async fn sell_an_article() -> Result<(), StaleVersion> {
    Err(StaleVersion::new("article", 42, 7))
}

#[tokio::test]
async fn conflicts_are_in_the_log() {
    let events = Events::all();
    sell_an_article().await.unwrap_err();
    let events = events.0.lock().unwrap();
    let is_ours = |seen: &&Seen| {
        let function = seen.get("function");
        function.is_some_and(|function| function.ends_with("::sell_an_article\""))
    };
    let ours: Vec<_> = events.iter().filter(is_ours).collect();
    let told: Vec<_> = ours
        .iter()
        .map(|seen| (&*seen["message"], &*seen["tries"]))
        .collect();
    let (again, last) = (
        "a conflict: the body runs again",
        "still a conflict: the body does not run again",
    );
    assert_eq!(told, [(again, "1"), (again, "2"), (last, "3")]);
    assert!(
        ours.iter().all(|seen| seen["error"].starts_with("article 42")),
        "{ours:?}"
    );
}
