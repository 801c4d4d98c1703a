//! The matrix on the databases: PostgreSQL and MariaDB behind a proxy that breaks the line, and a SQLite file.
//!
//! Real time, so the bounds are wide, but well below the ttl: no case passes because a lease ran out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dblock::open;
use dblock::store::StoreErrorKind;
use dblock::{LockGuard, LockManager, LockOptions};
use dblock_conformance::poll::{DropWhen, drop_after};
use dblock_tests::faulty_store::{ALL, Fault, FaultyStore, Kind};
use dblock_tests::line::{Database, Line};
use dblock_tests::proxy::{Traffic, Trick};
use futures_util::stream::{StreamExt, iter};
use sqlx::sqlite::SqliteConnectOptions;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::calls::{Call, KEY};

const TTL: Duration = Duration::from_secs(12);

/// How soon a row is free whose manager has a line to the server.
const SOON: Duration = Duration::from_secs(8);

/// How soon it is free when the engine must first give up a connection that is silent: at most 3 seconds.
const AFTER_SILENCE: Duration = Duration::from_secs(10);

/// As in `memory.rs`.
const SETTLED: Duration = Duration::from_secs(29);

/// A case that was quicker has given up no connection because the machine stalled.
const QUICK: Duration = Duration::from_millis(1400);

/// How many cases run at once. Each has a few connections, and mostly waits.
const AT_ONCE: usize = 9;

/// What goes wrong on the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    /// Nothing.
    None,
    /// Another process holds the key.
    Busy,
    /// Each reply takes a while.
    Slow,
    /// The line is cut while the call runs, and can be had again when it was dropped.
    Cut,
    /// The `nth` write of the key.
    Trick(Trick, usize),
}

#[derive(Debug, Clone, Copy)]
struct Case {
    call: Call,
    obstacle: Obstacle,
    when: DropWhen,
    polls: usize,
}

/// While it waits; when it was woken; when what was sent is on its way.
const MOMENTS: [DropWhen; 3] = [
    DropWhen::Waiting,
    DropWhen::Woken,
    DropWhen::Later(Duration::from_millis(20)),
];

/// Acquire, re-entry, end of the nested hold, release.
const WRITES: std::ops::RangeInclusive<usize> = 1..=4;

/// Every obstacle with the moments that it is tried at. One that costs seconds is tried at one of them: the
/// future's own awaits are the same as without obstacle.
fn sweeps() -> Vec<(Call, Obstacle, DropWhen)> {
    let mut sweeps = Vec::new();
    for when in MOMENTS {
        for obstacle in [Obstacle::None, Obstacle::Busy, Obstacle::Slow, Obstacle::Cut] {
            sweeps.extend([Call::Attribute, Call::Guard].map(|call| (call, obstacle, when)));
        }
    }
    for nth in WRITES {
        for when in [MOMENTS[1], MOMENTS[2]] {
            sweeps.push((Call::Attribute, Obstacle::Trick(Trick::LoseReply, nth), when));
            sweeps.push((Call::Attribute, Obstacle::Trick(Trick::LoseRequest, nth), when));
        }
        for trick in [Trick::Silence, Trick::Swallow] {
            sweeps.push((Call::Attribute, Obstacle::Trick(trick, nth), MOMENTS[2]));
        }
    }
    sweeps
}

async fn on_the_line(database: Database) {
    if database.url().is_none() {
        return;
    }
    let alone = &Mutex::new(());
    let quick = &AtomicUsize::new(0);
    let played: Vec<(usize, usize)> = iter(sweeps())
        .map(|(call, obstacle, when)| async move {
            let (mut cases, mut played) = (0, 0);
            for polls in 0.. {
                let case = Case {
                    call,
                    obstacle,
                    when,
                    polls,
                };
                assert!(polls < 60, "{case:?}: it never ends");
                let line = Line::new(database).await.expect("the server is given");
                let run = timeout(Duration::from_secs(90), play(case, &line, alone, quick)).await;
                let ended = run.unwrap_or_else(|_| panic!("{case:?} hangs"));
                cases += 1;
                played += line.proxy.played();
                line.clean_up().await;
                if ended {
                    break;
                }
            }
            let tricky = matches!(obstacle, Obstacle::Trick(..));
            assert!(
                !tricky || played > 0,
                "{obstacle:?} was never met by {call:?}, {when:?}"
            );
            (cases, played)
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "a task is left");
    let cases: usize = played.iter().map(|(cases, _)| cases).sum();
    let played: usize = played.iter().map(|(_, played)| played).sum();
    let quick = quick.load(Ordering::Relaxed);
    println!("{database:?}: {cases} cases, {quick} of them quick, {played} requests tampered with");
    assert!(quick > 0, "nothing is known about connections that are given up");
}

/// Runs the case. Whether the call came to its end.
async fn play(case: Case, line: &Line, alone: &Mutex<()>, quick: &AtomicUsize) -> bool {
    let began = Instant::now();
    let locks = line.manager().await;
    let connections = line.proxy.ports();
    let mut holder = None;
    match case.obstacle {
        Obstacle::None => {}
        Obstacle::Busy => {
            let other = line.other_process();
            holder = Some(
                other
                    .acquire(KEY, LockOptions::new().ttl(TTL * 10))
                    .await
                    .unwrap(),
            );
        }
        Obstacle::Slow => line.proxy.set(Traffic::Slow(Duration::from_millis(30))),
        Obstacle::Cut => line.proxy.set(Traffic::Refused),
        Obstacle::Trick(trick, nth) => line.look_out_for(KEY, nth, trick),
    }
    let call = case.call.start(&locks, TTL, Duration::ZERO);
    // What waits for the other process is given up at some time too.
    let call = timeout(Duration::from_secs(2), call);
    let ended = drop_after(call, case.polls, case.when).await.is_some();
    let dropped = Instant::now();
    line.proxy.set(Traffic::Flows);

    if let Some(holder) = holder {
        assert!(line.is_held(KEY).await, "{case:?}: the holder's lock is gone");
        is_released(holder, case).await;
        // A try that was on its way may be granted now, and is released at once.
    }
    let limit = match case.obstacle {
        Obstacle::Trick(Trick::Silence | Trick::Swallow, _) => AFTER_SILENCE,
        _ => SOON,
    };
    line.until_free(KEY, limit).await;
    let pending = async {
        while locks.health().pending_releases > 0 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SETTLED.saturating_sub(dropped.elapsed()), pending)
        .await
        .unwrap_or_else(|_| panic!("{case:?}: a release is never written"));
    // An acquire that was on its way may have been granted since.
    line.until_free(KEY, limit).await;

    line.proxy.look_away();
    is_good(&locks, limit, case).await;
    let is_quick = began.elapsed() <= QUICK;
    if ended || matches!(case.obstacle, Obstacle::Trick(..)) {
        let _turn = alone.lock().await;
        no_transaction_is_left_open(line, case).await;
    }
    let after = line.proxy.ports();
    assert!(
        line.proxy.most_open() <= 5,
        "{case:?}: {}",
        line.proxy.most_open()
    );
    let given_up = connections.iter().filter(|port| !after.contains(port)).count();
    match (case.obstacle, line.database) {
        (Obstacle::Cut | Obstacle::Trick(..), _) => {}
        _ if !is_quick => {}
        // An idle connection makes room for the one that listens.
        (Obstacle::Busy, Database::Postgres) => assert!(given_up <= 1, "{case:?}: {given_up} given up"),
        _ => {
            quick.fetch_add(1, Ordering::Relaxed);
            assert_eq!(given_up, 0, "{case:?}: connections were given up");
        }
    }
    ended
}

/// Waits for less than the five seconds after which MariaDB ends it by itself.
async fn no_transaction_is_left_open(line: &Line, case: Case) {
    let began = Instant::now();
    loop {
        // InnoDB shows what it saw before as long as somebody looks more often than each 100 ms.
        sleep(Duration::from_millis(120)).await;
        if line.idle_in_transaction().await == 0 {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{case:?}: a transaction is left open"
        );
    }
}

/// The next lock is taken and released, behind what is still on its way.
async fn is_good(locks: &LockManager, limit: Duration, case: Case) {
    let guard = locks.acquire(KEY, LockOptions::new().ttl(TTL).wait(limit)).await;
    let guard = guard.unwrap_or_else(|error| panic!("{case:?}: {error}"));
    is_released(guard, case).await;
}

/// On a machine that stalls a release may go on in the background, but nothing is lost.
async fn is_released(guard: LockGuard, case: Case) {
    if let Err(error) = guard.release().await {
        assert!(error.is_store(), "{case:?}: {error:?}");
    }
}

#[tokio::test]
async fn on_postgres() {
    on_the_line(Database::Postgres).await;
}

#[tokio::test]
async fn on_mysql() {
    on_the_line(Database::MySql).await;
}

/// SQLite has no line: its requests go wrong before and behind the store.
#[tokio::test]
async fn on_sqlite() {
    let mut sweeps = Vec::new();
    for kind in ALL {
        for when in MOMENTS {
            sweeps.push((kind, None, when));
            sweeps.push((kind, Some(Fault::Fail(StoreErrorKind::Conflict)), when));
            sweeps.push((kind, Some(Fault::Slow(Duration::from_millis(20))), when));
            sweeps.push((kind, Some(Fault::ReplyLost), when));
        }
        sweeps.push((kind, Some(Fault::Mute), MOMENTS[2]));
    }
    let cases: Vec<usize> = iter(sweeps)
        .map(|(kind, obstacle, when)| async move {
            for polls in 0.. {
                let about = format!("{kind:?} {obstacle:?} {when:?} {polls}");
                assert!(polls < 60, "{about}: it never ends");
                if on_a_file(kind, obstacle.clone(), when, polls, &about).await {
                    return polls + 1;
                }
            }
            unreachable!();
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    assert_eq!(Handle::current().metrics().num_alive_tasks(), 0, "a task is left");
    println!("SQLite: {} cases", cases.iter().sum::<usize>());
}

/// Runs the case in a file of its own. Whether the call came to its end.
async fn on_a_file(kind: Kind, obstacle: Option<Fault>, when: DropWhen, polls: usize, about: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let handle = || {
        let options = SqliteConnectOptions::new()
            .filename(folder.path().join("locks.db"))
            .create_if_missing(true);
        open::sqlite::open(options, "locks").unwrap()
    };
    let store = FaultyStore::over(handle());
    let other = LockManager::builder(handle()).auto_migrate(true);
    let (locks, other) = (store.manager(), other.build().await.unwrap());
    if let Some(obstacle) = obstacle {
        store.next(kind, obstacle);
    }
    let call = Call::Attribute.start(&locks, TTL, Duration::ZERO);
    let ended = drop_after(call, polls, when).await.is_some();
    for manager in [&other, &locks] {
        let next = manager
            .acquire(KEY, LockOptions::new().ttl(TTL).wait(AFTER_SILENCE))
            .await;
        let next = next.unwrap_or_else(|error| panic!("{about}: {error}"));
        next.release().await.unwrap();
    }
    assert_eq!(store.overlaps(), [], "{about}");
    ended
}
