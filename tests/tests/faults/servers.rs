//! The line to a real server breaks: through a proxy, on PostgreSQL and MariaDB. Lost replies to extends and
//! releases are in the conformance suite.
//!
//! Needs the servers of `DBLOCK_TEST_POSTGRES_URL` and `DBLOCK_TEST_MYSQL_URL`. Limits are generous here;
//! the same faults are timed exactly in `acquire.rs` and `lease.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::{LockError, LockGuard, LockManager, LockOptions, TimeoutCause};
use dblock_tests::line::{Database, Line};
use dblock_tests::proxy::{Traffic, Trick};
use tokio::time::{Instant, sleep, timeout};

/// Each of these runs against both servers.
macro_rules! on_both_servers {
    ($($test:ident),* $(,)?) => {
        mod postgres {
            $(#[tokio::test]
            async fn $test() {
                super::run(super::Database::Postgres, super::$test).await;
            })*
        }
        mod mysql {
            $(#[tokio::test]
            async fn $test() {
                super::run(super::Database::MySql, super::$test).await;
            })*
        }
    };
}

on_both_servers!(
    a_grant_whose_reply_was_lost_is_replaced,
    an_acquire_that_never_arrived_is_replaced,
    an_acquire_that_arrives_late_is_released,
    what_arrives_twice_counts_once,
    what_arrives_again_frees_nobody_and_grants_for_one_ttl,
    renewals_survive_an_outage_shorter_than_the_lease,
    cancelled_acquires_leave_nothing_behind,
    a_store_that_is_down_is_neither_busy_nor_acquired,
    waiting_holds_no_connection,
    a_transaction_of_the_users_stalls_no_lease,
);

async fn run<F: Future<Output = ()>>(database: Database, test: impl FnOnce(Line) -> F) {
    let Some(line) = Line::new(database).await else {
        return;
    };
    // An acquire of an absent row begins with statements that change nothing.
    let made = line
        .other_process()
        .lock("the-key")
        .options(&no_wait())
        .run(async {})
        .await;
    made.expect("nothing is broken yet");
    timeout(ms(150_000), test(line)).await.expect("the test hangs");
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn no_wait() -> LockOptions {
    LockOptions::new()
}

fn wait(length: Duration) -> LockOptions {
    no_wait().wait(length)
}

fn ttl(length: Duration) -> LockOptions {
    LockOptions::new().ttl(length)
}

async fn acquire(locks: &LockManager, options: LockOptions, limit: Duration) -> Result<LockGuard, LockError> {
    timeout(limit, locks.lock("the-key").options(&options).acquire())
        .await
        .unwrap_or_else(|_| panic!("the caller hangs past {limit:?}"))
}

async fn a_grant_whose_reply_was_lost_is_replaced(line: Line) {
    replaced(line, Trick::LoseReply).await;
}

async fn an_acquire_that_never_arrived_is_replaced(line: Line) {
    replaced(line, Trick::LoseRequest).await;
}

async fn replaced(line: Line, trick: Trick) {
    for (round, options) in [no_wait(), wait(ms(5000))].into_iter().enumerate() {
        let locks = line.manager().await;
        line.look_out("the-key", trick);
        // The ttl is 30 seconds: nobody waits for the lost grant to expire.
        let guard = acquire(&locks, options, ms(15_000)).await.unwrap();
        assert_eq!(line.proxy.played(), round + 1);
        let row = line.row("the-key").await;
        assert_eq!((row.reentrant_count, row.fence_token), (1, guard.fence_token()));
        sleep(ms(300)).await;
        assert_eq!(
            line.row("the-key").await.lease_id,
            row.lease_id,
            "no resent release frees it"
        );
        let busy = line
            .other_process()
            .lock("the-key")
            .options(&no_wait())
            .acquire()
            .await
            .unwrap_err();
        assert!(busy.is_busy(), "{busy:?}");
        guard.release().await.unwrap();
        assert!(!line.is_held("the-key").await);
    }
}

async fn an_acquire_that_arrives_late_is_released(line: Line) {
    // Its caller has gone away.
    let locks = line.manager().await;
    line.look_out("the-key", Trick::DeliverLate);
    let call = async {
        let call = locks.lock("the-key").options(&wait(ms(5000))).acquire();
        let gone = async {
            while line.proxy.played() == 0 {
                sleep(ms(1)).await;
            }
        };
        tokio::select! {
            _ = call => panic!("the acquire has not been carried out"),
            () = gone => {}
        }
    };
    call.await;
    // Its releases so far found nothing.
    sleep(ms(200)).await;
    assert!(!line.is_held("the-key").await);
    line.proxy.deliver().await;
    line.until_free("the-key", ms(15_000)).await;

    // Its caller has another lease by now, which it does not disturb.
    line.look_out("the-key", Trick::DeliverLate);
    let guard = acquire(&locks, wait(ms(9000)), ms(15_000)).await.unwrap();
    let row = line.row("the-key").await;
    line.proxy.deliver().await;
    let later = line.row("the-key").await;
    assert_eq!(
        (later.lease_id, later.fence_token),
        (row.lease_id, guard.fence_token())
    );
    guard.release().await.unwrap();
    sleep(ms(100)).await;
    assert!(!line.is_held("the-key").await);
}

/// Plays `trick` on the next request for the key that is a transaction by itself. (MySQL has none that writes.)
fn repeat(line: &Line, trick: Trick) {
    let names_key = |bytes: &[u8]| bytes.windows(7).any(|window| window == b"the-key");
    line.proxy.look_out(trick, Box::new(names_key));
}

async fn what_arrives_twice_counts_once(line: Line) {
    if !line.takes_one_message().await {
        return eprintln!("LEFT OUT: this server gets transactions of several messages");
    }
    let locks = line.manager().await;
    repeat(&line, Trick::Repeat);
    let guard = acquire(&locks, no_wait(), ms(15_000)).await.unwrap();
    let row = line.row("the-key").await;
    assert_eq!((row.reentrant_count, row.fence_token), (1, guard.fence_token()));
    repeat(&line, Trick::Repeat);
    guard.release().await.unwrap();
    assert!(!line.is_held("the-key").await);
    let other = acquire(&line.other_process(), no_wait(), ms(15_000))
        .await
        .unwrap();
    // The next one waits until the second answer is thrown away.
    let busy = acquire(&locks, no_wait(), ms(15_000)).await.unwrap_err();
    assert!(busy.is_busy(), "{busy:?}");
    assert_eq!(line.proxy.played(), 2);
    let later = line.row("the-key").await;
    assert_eq!(
        (later.reentrant_count, later.fence_token),
        (1, other.fence_token())
    );
    other.release().await.unwrap();
}

async fn what_arrives_again_frees_nobody_and_grants_for_one_ttl(line: Line) {
    if !line.takes_one_message().await {
        return eprintln!("LEFT OUT: this server gets transactions of several messages");
    }
    let (locks, others) = (line.manager().await, line.other_process());
    let guard = acquire(&locks, no_wait(), ms(15_000)).await.unwrap();
    repeat(&line, Trick::RepeatLate);
    guard.release().await.unwrap();
    // The release comes again when another process has the key.
    let other = acquire(&others, no_wait(), ms(15_000)).await.unwrap();
    let row = line.row("the-key").await;
    line.proxy.deliver().await;
    let later = line.row("the-key").await;
    assert_eq!((later.lease_id, later.reentrant_count), (row.lease_id, 1));
    other.release().await.unwrap();

    // The acquire comes again when another process has had the key.
    let locks = line.manager().await;
    repeat(&line, Trick::RepeatLate);
    let guard = acquire(&locks, ttl(ms(1000)), ms(15_000)).await.unwrap();
    let token = guard.fence_token();
    guard.release().await.unwrap();
    let other = acquire(&others, no_wait(), ms(15_000)).await.unwrap();
    other.release().await.unwrap();
    assert_eq!(line.proxy.played(), 2);
    line.proxy.deliver().await;
    let row = line.row("the-key").await;
    if row.is_held() {
        assert!(row.fence_token > token, "nobody has this lease: {row:?}");
        line.until_free("the-key", ms(1500)).await;
    } else {
        // A manager that finds its connection broken has PostgreSQL end the session, so that nothing comes from it any more.
        assert_eq!(line.database, Database::Postgres);
    }
}

async fn renewals_survive_an_outage_shorter_than_the_lease(line: Line) {
    for outage in [Traffic::Refused, Traffic::BlackHole] {
        let locks = line.manager().await;
        let body = async {
            line.proxy.set(outage);
            sleep(ms(4500)).await;
            line.proxy.set(Traffic::Flows);
            sleep(ms(7500)).await;
        };
        let result = locks.lock("the-key").options(&ttl(ms(9000))).run(body).await;
        result.unwrap_or_else(|error| panic!("{outage:?}: {error}"));
        assert!(!line.is_held("the-key").await);
    }
}

async fn cancelled_acquires_leave_nothing_behind(line: Line) {
    let locks = line.manager().await;
    line.proxy.set(Traffic::Slow(ms(5)));
    let (began, open) = (Instant::now(), line.proxy.ports());
    for round in 0..60_u64 {
        // From before the first poll until after the grant.
        let call = locks.lock("the-key").options(&wait(ms(5000))).acquire();
        let _ = timeout(Duration::from_micros(round * 500), call).await;
        // On a machine that stalls the engine may have given one up.
        if round == 6 && began.elapsed() < ms(1000) {
            let now = line.proxy.ports();
            let is_kept = open.iter().all(|port| now.contains(port));
            assert!(is_kept, "a call that is dropped costs no connection");
        }
        if round % 20 == 7 {
            // A connection breaks on top of it.
            line.look_out("the-key", Trick::LoseReply);
        }
    }
    line.proxy.set(Traffic::Flows);
    line.until_free("the-key", ms(15_000)).await;
    let guard = acquire(&locks, no_wait(), ms(15_000)).await.unwrap();
    guard.release().await.unwrap();
    sleep(ms(200)).await;
    assert!(!line.is_held("the-key").await);
    assert!(
        line.proxy.ports().len() <= 4,
        "{} connections",
        line.proxy.ports().len()
    );
    assert_eq!(line.idle_in_transaction().await, 0);
}

async fn a_store_that_is_down_is_neither_busy_nor_acquired(line: Line) {
    for outage in [Traffic::Refused, Traffic::BlackHole] {
        let locks = line.manager().await;
        line.proxy.set(outage);
        let error = acquire(&locks, wait(ms(1000)), ms(6000)).await.unwrap_err();
        let no_answer = matches!(
            error,
            LockError::Timeout {
                cause: TimeoutCause::NoAnswer,
                ..
            }
        );
        assert!(error.is_store() && !error.is_busy(), "{outage:?}: {error:?}");
        assert!(
            !no_answer || outage == Traffic::BlackHole,
            "{outage:?}: {error:?}"
        );
        // Without a wait the store has five seconds.
        let error = acquire(&locks, no_wait(), ms(9000)).await.unwrap_err();
        assert!(error.is_store(), "{outage:?}: {error:?}");

        line.proxy.set(Traffic::Flows);
        let guard = acquire(&locks, wait(ms(12_000)), ms(12_000)).await.unwrap();
        guard.release().await.unwrap();
    }
}

async fn waiting_holds_no_connection(line: Line) {
    let (locks, other) = (line.manager().await, line.other_process());
    let theirs = acquire(&other, no_wait(), ms(15_000)).await.unwrap();
    let waiters: Vec<_> = (0..100)
        .map(|number| {
            let locks = locks.clone();
            // Half of them behind a lease of this process, half behind one of another.
            let key = if number % 2 == 0 { "the-key" } else { "mine" };
            tokio::spawn(async move { locks.lock(key).options(&wait(ms(40_000))).run(sleep(ms(1))).await })
        })
        .collect();
    let mine = timeout(
        ms(10_000),
        locks.lock("mine").options(&wait(ms(10_000))).acquire(),
    )
    .await
    .unwrap()
    .unwrap();
    let started = Instant::now();
    for number in 0..20 {
        locks
            .lock(format!("another-{number}"))
            .options(&no_wait())
            .run(async {})
            .await
            .unwrap();
    }
    assert!(
        started.elapsed() < ms(15_000),
        "other keys are quick: {:?}",
        started.elapsed()
    );

    mine.release().await.unwrap();
    // The waiters hear nothing of a release in another process.
    let free = Instant::now();
    theirs.release().await.unwrap();
    let first = locks
        .lock("the-key")
        .options(&wait(ms(10_000)))
        .acquire()
        .await
        .unwrap();
    first.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
    // 50 leases one after the other, each soon after the last.
    assert!(free.elapsed() < ms(20_000), "{:?}", free.elapsed());
    assert!(
        line.proxy.most_open() <= 4,
        "{} connections",
        line.proxy.most_open()
    );

    let theirs = acquire(&other, no_wait(), ms(15_000)).await.unwrap();
    let leaving = async {
        sleep(ms(1000)).await;
        theirs.release().await.unwrap();
        Instant::now()
    };
    let (guard, free) = tokio::join!(acquire(&locks, wait(ms(9000)), ms(15_000)), leaving);
    assert!(free.elapsed() < ms(4000), "{:?}", free.elapsed());
    guard.unwrap().release().await.unwrap();
}

async fn a_transaction_of_the_users_stalls_no_lease(line: Line) {
    let locks = line.manager().await;
    let guard = acquire(&locks, ttl(ms(12_000)), ms(15_000)).await.unwrap();
    let short = locks
        .lock("short")
        .options(&ttl(ms(9000)))
        .acquire()
        .await
        .unwrap();
    let transaction = line.verified(&guard).await;
    let before = line.row("the-key").await.expire_at;
    let short_before = line.row("short").await.expire_at;
    let body = async {
        // Renewals of the row are due and skipped; those of others are not.
        let mut quick = 0;
        for number in 0..20 {
            let started = Instant::now();
            locks
                .lock(format!("another-{number}"))
                .options(&no_wait())
                .run(async {})
                .await
                .unwrap();
            quick += u32::from(started.elapsed() < ms(800));
            sleep(ms(250)).await;
        }
        // A machine that stalls spoils a few of them.
        assert!(quick >= 10, "{quick} of 20 were quick");
        assert_eq!(line.row("the-key").await.expire_at, before, "the row is locked");
        assert!(line.row("short").await.expire_at > short_before, "it was renewed");
        // A re-entry waits for no row lock: it is inside before the commit.
        let nested = async {
            assert_eq!(line.row("the-key").await.reentrant_count, 1, "memory decides");
            let busy = line
                .other_process()
                .lock("the-key")
                .options(&no_wait())
                .acquire()
                .await
                .unwrap_err();
            assert!(busy.is_busy(), "{busy:?}");
            transaction.commit().await;
            let started = Instant::now();
            while line.row("the-key").await.reentrant_count != 2 {
                assert!(started.elapsed() < ms(10_000), "the count is written later");
                sleep(ms(20)).await;
            }
        };
        locks
            .lock("the-key")
            .options(&ttl(ms(12_000)))
            .run(nested)
            .await
            .unwrap();
    };
    Box::pin(guard.enter(body)).await.unwrap();
    assert!(line.row("the-key").await.expire_at > before);
    assert!(!short.is_lost());
    short.release().await.unwrap();
    guard.release().await.unwrap();
}

/// The worker of the caller's only runtime is blocked, and its pool is empty.
#[test]
fn renewals_need_neither_the_callers_runtime_nor_its_pool() {
    for database in [Database::Postgres, Database::MySql] {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let Some(line) = Line::new(database).await else {
                return;
            };
            let (locks, _pool) = with_a_full_pool(&line).await;
            let guard = acquire(&locks, ttl(ms(9000)), ms(15_000)).await.unwrap();
            let lease = line.row("the-key").await.lease_id;
            std::thread::sleep(ms(10_000));
            assert!(!guard.is_lost());
            let row = line.row("the-key").await;
            assert_eq!((row.lease_id, row.is_held()), (lease, true));
            guard.release().await.unwrap();
        });
    }
}

/// A manager from a pool whose only connection is taken.
async fn with_a_full_pool(line: &Line) -> (LockManager, Box<dyn std::any::Any>) {
    match line.database {
        Database::Postgres => {
            let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
            let pool = pool.connect(&line.url).await.unwrap();
            let taken = pool.acquire().await.unwrap();
            let locks = LockManager::builder(&pool)
                .table(&line.table)
                .build()
                .await
                .unwrap();
            (locks, Box::new(taken))
        }
        Database::MySql => {
            let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1);
            let pool = pool.connect(&line.url).await.unwrap();
            let taken = pool.acquire().await.unwrap();
            let locks = LockManager::builder(&pool)
                .table(&line.table)
                .build()
                .await
                .unwrap();
            (locks, Box::new(taken))
        }
    }
}
