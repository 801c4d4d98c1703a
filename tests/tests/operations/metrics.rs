//! The metrics of locks in use, on memory and on PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::OnceLock;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockOptions, OnCrash, Run, RunOptions, distributed_lock};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind as Asked};
use dblock_tests::line::{self, Line};
use dblock_tests::proxy::Traffic;
use dblock_tests::{Backend, Kind};
use futures_util::future::{join_all, select};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::exposition::Exposition;
use crate::files;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(1);
const TASKS: u32 = 8;
const TIMES: u32 = 20;

/// The buckets that docs/operations.md recommends.
const SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0,
];

fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), SECONDS)
            .unwrap()
            .set_buckets_for_metric(
                Matcher::Full("dblock_store_batch_size".into()),
                &[1.0, 2.0, 5.0, 10.0, 50.0, 200.0],
            )
            .unwrap();
        builder.install_recorder().unwrap()
    })
}

fn exposed() -> Exposition {
    Exposition::parse(&recorder().render())
}

struct Service {
    locks: LockManager,
}

impl Service {
    #[distributed_lock(key = "annotated", manager = self.locks)]
    async fn outer(&self) -> Result<(), LockError> {
        self.inner().await
    }

    #[distributed_lock(key = "annotated", manager = self.locks)]
    async fn inner(&self) -> Result<(), LockError> {
        Ok(())
    }
}

fn options(function: &'static str) -> LockOptions {
    LockOptions::new().function(function)
}

/// The values that the scenario has recorded for its store.
struct Seen {
    store: &'static str,
    exposition: Exposition,
}

impl Seen {
    fn of(store: &'static str) -> Self {
        let exposition = exposed();
        Self { store, exposition }
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<i64> {
        let labels = [&[("store", self.store)], labels].concat();
        self.exposition.count(name, &labels)
    }

    /// How many acquires of the function ended so.
    fn acquires(&self, function: &str, outcome: &str) -> Option<i64> {
        let labels = [("function", function), ("outcome", outcome)];
        self.value("dblock_acquire_seconds_count", &labels)
    }

    fn of_function(&self, name: &str, function: &str) -> Option<i64> {
        self.value(name, &[("function", function)])
    }

    fn lost(&self, function: &str, reason: &str) -> Option<i64> {
        self.value("dblock_lost_total", &[("function", function), ("reason", reason)])
    }

    fn hand_overs(&self, function: &str, to: &str) -> Option<i64> {
        self.value("dblock_hand_overs_total", &[("function", function), ("to", to)])
    }
}

async fn scenario(store: &'static str, kind: Kind) -> Option<Seen> {
    let backend = Backend::new(kind).await?;
    let (one, other) = (backend.manager().await, backend.manager().await);
    Service { locks: one.clone() }.outer().await.unwrap();
    taken(&one, &other).await;
    crowd(&one).await;
    passed_on(store, &one, &other).await;
    lost(&one, &other, &backend).await;
    runs(&one).await;
    fails(kind).await;
    one.shutdown(Duration::ZERO).await;
    let refused = one.lock("shutdown").options(&options("stops")).acquire().await;
    assert!(matches!(refused, Err(LockError::Shutdown { .. })));
    backend.clean_up().await;
    let seen = Seen::of(store);
    expect(&seen);
    Some(seen)
}

/// Another process holds the lock.
async fn taken(one: &LockManager, other: &LockManager) {
    let guard = one
        .lock("taken")
        .options(&options("holds"))
        .acquire()
        .await
        .unwrap();
    let busy = other.lock("taken").options(&options("tries")).acquire().await;
    assert!(busy.unwrap_err().is_busy());
    // Long enough for a slow machine's answer: without one it would be the store's error.
    let short = options("gives_up").wait(5 * SHORT);
    let late = other.lock("taken").options(&short).acquire().await;
    assert!(matches!(late, Err(LockError::Timeout { .. })));
    let waits = other
        .lock("taken")
        .options(&options("is_dropped"))
        .wait(LONG)
        .acquire();
    let first = Box::pin(async { tokio::task::yield_now().await });
    drop(select(Box::pin(waits), first).await);
    // Without a function it is `none`.
    let nameless = other.lock("nameless").acquire().await.unwrap();
    nameless.release().await.unwrap();
    guard.release().await.unwrap();
}

/// Tasks of one process.
async fn crowd(one: &LockManager) {
    let task = async |_| {
        for _ in 0..TIMES {
            one.lock("crowd")
                .options(&options("crowd"))
                .wait(LONG)
                .run(tokio::task::yield_now())
                .await
                .unwrap();
        }
    };
    join_all((0..TASKS).map(task)).await;
}

/// The lock goes to a process that waits.
async fn passed_on(store: &'static str, one: &LockManager, other: &LockManager) {
    let guard = one
        .lock("passed")
        .options(&options("passes"))
        .acquire()
        .await
        .unwrap();
    let waits = other
        .lock("passed")
        .options(&options("receives"))
        .wait(LONG)
        .run(async {});
    let release = async {
        while one
            .admin()
            .get("passed")
            .await
            .unwrap()
            .is_none_or(|row| row.next.is_none())
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let waiting = Seen::of(store).of_function("dblock_waiting", "receives");
        assert_eq!(waiting, Some(1), "{store}");
        assert_eq!(
            Seen::of(store).of_function("dblock_held", "passes"),
            Some(1),
            "{store}"
        );
        guard.release().await.unwrap();
    };
    let (received, ()) = tokio::join!(waits, release);
    received.unwrap();
}

/// Leases that end before their owners leave.
async fn lost(one: &LockManager, other: &LockManager, backend: &Backend) {
    let guard = one
        .lock("freed")
        .options(&options("is_freed"))
        .ttl(4 * SHORT)
        .acquire()
        .await
        .unwrap();
    other.admin().force_release("freed").await.unwrap();
    guard.lost().await;
    let guard = one
        .lock("revoked")
        .options(&options("is_revoked"))
        .ttl(4 * SHORT)
        .acquire()
        .await
        .unwrap();
    other.admin().revoke("revoked").await.unwrap();
    guard.lost().await;
    let limited = options("is_limited").max_hold(Duration::from_millis(20));
    let body = one
        .lock("limited")
        .options(&limited)
        .run(std::future::pending::<()>())
        .await;
    assert!(body.unwrap_err().is_lost());
    backend.die_inside("left", 4 * SHORT).await;
    let taken = one
        .lock("left")
        .options(&options("takes_over"))
        .wait(LONG)
        .acquire()
        .await
        .unwrap();
    taken.release().await.unwrap();
}

/// Three owners have one key at once, in two processes.
async fn shares() {
    let backend = Backend::new(Kind::Memory).await.unwrap();
    let (one, other) = (backend.manager().await, backend.manager().await);
    let acquire = async |locks: &LockManager| {
        let lock = locks.lock("shared").options(&options("shares")).shared();
        lock.acquire().await.unwrap()
    };
    let first = acquire(&one).await;
    let rest = [acquire(&one).await, acquire(&other).await];
    let held = || Seen::of("memory").of_function("dblock_held", "shares");
    assert_eq!(held(), Some(3));
    first.release().await.unwrap();
    assert_eq!(held(), Some(2));
    assert!(one.admin().revoke("shared").await.unwrap());
    for guard in &rest {
        guard.lost().await;
    }
    // The metric follows what the guards are told.
    while held() != Some(0) {
        tokio::task::yield_now().await;
    }
    drop(rest);
    let seen = Seen::of("memory");
    assert_eq!(seen.lost("shares", "revoked"), Some(2));
    for (name, times) in [("dblock_hold_seconds_count", 3), ("dblock_held", 0)] {
        assert_eq!(seen.of_function(name, "shares"), Some(times), "{name}");
    }
    assert_eq!(seen.acquires("shares", "acquired"), Some(3));
}

/// One run that is replayed, one that fails, one that is left in doubt, one that is stopped.
async fn runs(one: &LockManager) {
    let stop = || RunOptions::new(LONG, OnCrash::Stop).lock(options("pays"));
    for _ in 0..2 {
        let paid = async |_| Ok::<_, LockError>(1);
        one.run_once("paid", stop(), paid).await.unwrap();
    }
    for _ in 0..2 {
        let declined = async |_| Err::<u8, _>(LockError::NoManager);
        let last = stop().max_attempts(1);
        one.run_once("declined", last, declined).await.unwrap_err();
    }
    for _ in 0..2 {
        let silent = async |run: Run| {
            run.leave_in_doubt();
            Err::<u8, _>(LockError::NoManager)
        };
        one.run_once("silent", stop(), silent).await.unwrap_err();
    }
    let limited = options("pays").max_hold(Duration::from_millis(500));
    let hangs = async |_| std::future::pending::<Result<u8, LockError>>().await;
    let stopped = one.run_once("hangs", stop().lock(limited), hangs).await;
    assert!(stopped.unwrap_err().is_lost());
}

/// A store that cannot be reached.
async fn fails(kind: Kind) {
    let locks = if kind == Kind::Postgres {
        // Nothing listens there.
        let builder = LockManager::builder_for_url("postgres://nobody@127.0.0.1:1/none").unwrap();
        builder.build_lazy().unwrap()
    } else {
        let store = FaultyStore::memory();
        store.always(Asked::Acquire, Fault::Fail(StoreErrorKind::Unreachable));
        store.manager()
    };
    let failed = locks.lock("any").options(&options("fails")).acquire().await;
    assert!(failed.unwrap_err().is_store());
}

/// The connections of a store break, and it opens another one.
async fn connects_again() {
    let Some(line) = Line::new(line::Database::Postgres).await else {
        return;
    };
    let locks = line.manager().await;
    let lock = async || {
        locks
            .lock("key")
            .options(&options("connects"))
            .run(async {})
            .await
    };
    lock().await.unwrap();
    line.proxy.set(Traffic::Refused);
    assert!(lock().await.unwrap_err().is_store());
    line.proxy.set(Traffic::Flows);
    lock().await.unwrap();
}

fn expect(seen: &Seen) {
    let all = i64::from(TASKS * TIMES);
    for (function, outcome, times) in [
        ("operations::metrics::outer", "acquired", 1),
        ("operations::metrics::inner", "re_entered", 1),
        ("holds", "acquired", 1),
        ("tries", "busy", 1),
        ("gives_up", "timeout", 1),
        ("is_dropped", "dropped", 1),
        ("none", "acquired", 1),
        ("crowd", "acquired", all),
        ("receives", "acquired", 1),
        ("fails", "store_error", 1),
        ("stops", "shutdown", 1),
    ] {
        assert_eq!(
            seen.acquires(function, outcome),
            Some(times),
            "{} {function}",
            seen.store
        );
    }
    let holds = |function| seen.of_function("dblock_hold_seconds_count", function);
    for (function, reason) in [
        ("is_freed", "gone"),
        ("is_revoked", "revoked"),
        ("is_limited", "max_hold"),
    ] {
        assert_eq!(seen.lost(function, reason), Some(1), "{} {function}", seen.store);
        assert_eq!(holds(function), Some(1));
        assert_eq!(seen.lost(function, "expired"), Some(0), "exists from the start");
    }
    assert_eq!(holds("crowd"), Some(all));
    for (outcome, times) in [
        ("ran", 1),
        ("replayed", 1),
        ("failed", 1),
        ("refused", 1),
        ("in_doubt", 2),
        ("interrupted", 1),
    ] {
        let labels = [("function", "pays"), ("outcome", outcome)];
        assert_eq!(
            seen.value("dblock_runs_total", &labels),
            Some(times),
            "{} {outcome}",
            seen.store
        );
    }
    let waits = |function| seen.of_function("dblock_wait_seconds_count", function);
    assert!(waits("crowd") >= Some(i64::from(TASKS - 1)));
    for (function, times) in [("receives", 1), ("takes_over", 1), ("gives_up", 1), ("holds", 0)] {
        assert_eq!(waits(function), Some(times), "{} {function}", seen.store);
    }
    let labels = [("store", seen.store), ("function", "gives_up")];
    let waited = seen.exposition.seconds("dblock_wait_seconds_sum", &labels);
    assert!(
        (SHORT.as_secs_f64()..LONG.as_secs_f64()).contains(&waited),
        "{waited}"
    );
    assert!(seen.hand_overs("crowd", "task") >= Some(1));
    assert_eq!(seen.hand_overs("passes", "process"), Some(1));
    assert_eq!(seen.of_function("dblock_takeovers_total", "takes_over"), Some(1));
    assert!(seen.value("dblock_store_errors_total", &[("kind", "unreachable")]) >= Some(1));
    let moved = seen.value("dblock_store_events_total", &[("event", "moved")]);
    assert_eq!(moved, Some(0), "exists from the start");
    assert!(seen.value("dblock_renewal_lag_seconds_count", &[]) >= Some(1));
    // Nobody is left.
    assert_eq!(seen.value("dblock_held", &[]), Some(0));
    assert_eq!(seen.value("dblock_waiting", &[]), Some(0));
}

/// The scenario on both stores; then the dashboard, the alerts and the document are compared with what was
/// seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exporter_shows_what_happened_and_the_files_use_its_names() {
    recorder();
    shares().await;
    scenario("memory", Kind::Memory).await.unwrap();
    let Some(seen) = scenario("postgres", Kind::Postgres).await else {
        return;
    };
    // A database is asked in batches.
    assert!(seen.value("dblock_store_round_trip_seconds_count", &[]) >= Some(1));
    let batches = seen.value("dblock_store_batch_size_count", &[]);
    assert!(seen.value("dblock_store_batch_size_sum", &[]) >= batches && batches >= Some(1));
    connects_again().await;
    let seen = Seen::of(seen.store);
    let reconnected = seen.value("dblock_store_events_total", &[("event", "reconnected")]);
    assert!(reconnected >= Some(1), "{reconnected:?}");
    let values = seen.exposition.values();
    let key = values.iter().find(|value| value.contains("annotated"));
    assert_eq!(key, None, "a key is never a label");
    files::fit(&seen.exposition);
}
