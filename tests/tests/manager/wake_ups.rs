//! Wake-ups by other processes' releases: they save time and statements, and nothing else depends on them.
//! On a clock that jumps from event to event, so that statements can be counted.

use std::sync::Arc;
use std::time::Duration;

use dblock::LockManager;
use dblock::store::Store;
use dblock_tests::faulty_store::{FaultyStore, Kind};
use dblock_tests::telling_store::TellingStore;
use dblock_tests::{Backend, on_every_store};
use tokio::time::{Instant, sleep};

use crate::{LONG, long, patient};

on_every_store!(postgres:
    a_connection_that_hears_nothing_any_more_only_slows_things,
);

struct Context {
    telling: TellingStore,
    /// Counts what the waiting process asks.
    counting: Arc<FaultyStore>,
    waiting: LockManager,
    holding: LockManager,
}

impl Context {
    fn new() -> Self {
        let telling = TellingStore::new();
        let inner: Arc<dyn Store> = Arc::new(telling.clone());
        let counting = FaultyStore::over(inner);
        let other: Arc<dyn Store> = Arc::new(telling.clone());
        Self {
            waiting: counting.manager(),
            holding: LockManager::builder(other).build_lazy().unwrap(),
            telling,
            counting,
        }
    }

    fn acquires(&self) -> usize {
        self.counting.asked_to(Kind::Acquire).len()
    }

    /// Has many callers wait for 10 seconds for a key that another process holds; how often the store was
    /// asked.
    async fn asked_in_ten_seconds(&self) -> usize {
        let guard = self.holding.lock("key").options(&long()).acquire().await.unwrap();
        let waiters = (0..100).map(|_| {
            let locks = self.waiting.clone();
            tokio::spawn(async move { locks.lock("key").options(&patient()).acquire().await })
        });
        let waiters: Vec<_> = waiters.collect();
        let before = self.acquires();
        sleep(Duration::from_secs(10)).await;
        let asked = self.acquires() - before;
        for waiter in waiters {
            waiter.abort();
        }
        guard.release().await.unwrap();
        asked
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_told_asks_about_once_a_second() {
    let context = Context::new();
    let asked = context.asked_in_ten_seconds().await;
    assert!((10..=14).contains(&asked), "{asked}");
    assert_eq!(context.telling.listeners(), 1, "one a process, not one a caller");
}

#[tokio::test(start_paused = true)]
async fn who_hears_nothing_polls() {
    let context = Context::new();
    context.telling.go_deaf();
    let asked = context.asked_in_ten_seconds().await;
    assert!((80..=140).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn a_release_wakes_at_once() {
    let context = Context::new();
    let guard = context
        .holding
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let locks = context.waiting.clone();
        async move {
            let guard = locks.lock("key").options(&patient()).acquire().await.unwrap();
            (guard, Instant::now())
        }
    });
    sleep(Duration::from_millis(3_333)).await;
    guard.release().await.unwrap();
    let released = Instant::now();
    let (guard, entered) = waiter.await.unwrap();
    assert!(
        entered - released <= Duration::from_millis(1),
        "{:?}",
        entered - released
    );
    guard.release().await.unwrap();
}

/// Nothing but the release itself makes the waiting process ask; where it hears nothing, it polls.
#[tokio::test(start_paused = true)]
async fn a_free_place_is_used_while_somebody_waits() {
    for (deaf, within) in [(false, 1), (true, 200)] {
        let context = Context::new();
        if deaf {
            context.telling.go_deaf();
        }
        let enter = async |locks: &LockManager| {
            let lock = locks.lock("key").options(&patient()).limit(2);
            lock.acquire().await.unwrap()
        };
        let other: Arc<dyn Store> = Arc::new(context.telling.clone());
        let other = LockManager::builder(other).build_lazy().unwrap();
        let (stays, leaves) = (enter(&context.holding).await, enter(&other).await);
        let release = async {
            sleep(Duration::from_millis(3_333)).await;
            leaves.release().await.unwrap();
            Instant::now()
        };
        let waits = async { (enter(&context.waiting).await, Instant::now()) };
        let (released, (entered, at)) = tokio::join!(release, waits);
        assert!(
            at - released <= Duration::from_millis(within),
            "{:?}",
            at - released
        );
        drop((stays, entered));
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_that_nobody_was_told_of_is_found_within_a_second() {
    let context = Context::new();
    let guard = context
        .holding
        .lock("key")
        .options(&long())
        .ttl(Duration::from_secs(5))
        .renew(false)
        .acquire()
        .await;
    // It expires: nobody tells of that, but the reply said when.
    let since = Instant::now();
    let next = context
        .waiting
        .lock("key")
        .options(&patient())
        .acquire()
        .await
        .unwrap();
    let after = since.elapsed();
    assert!((5_000..=5_100).contains(&after.as_millis()), "{after:?}");
    next.release().await.unwrap();
    drop(guard);
    // An operator frees it; this store tells nobody.
    let guard = context
        .holding
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let locks = context.waiting.clone();
        async move { locks.lock("key").options(&patient()).acquire().await }
    });
    sleep(Duration::from_secs(3)).await;
    let since = Instant::now();
    context.holding.admin().force_release("key").await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(
        since.elapsed() <= Duration::from_millis(1_001),
        "{:?}",
        since.elapsed()
    );
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn going_deaf_in_the_middle_is_noticed() {
    let context = Context::new();
    let guard = context
        .holding
        .lock("key")
        .options(&long())
        .acquire()
        .await
        .unwrap();
    let waiter = tokio::spawn({
        let locks = context.waiting.clone();
        async move { locks.lock("key").options(&patient()).acquire().await }
    });
    sleep(Duration::from_secs(3)).await;
    assert_eq!(context.telling.listeners(), 1);
    context.telling.go_deaf();
    let before = context.acquires();
    sleep(Duration::from_secs(2)).await;
    let asked = context.acquires() - before;
    assert!(asked >= 10, "back to polling: {asked}");
    guard.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn listening_ends_when_nobody_has_waited_for_a_minute() {
    let context = Context::new();
    context.asked_in_ten_seconds().await;
    assert_eq!(context.telling.listeners(), 1);
    sleep(Duration::from_secs(30)).await;
    assert_eq!(context.telling.listeners(), 1);
    sleep(Duration::from_secs(40)).await;
    assert_eq!(context.telling.listeners(), 0);
    context.asked_in_ten_seconds().await;
    assert_eq!(context.telling.listeners(), 1, "and begins again");
}

/// Waits for the session that listens on the table's channel, and ends it.
const END_LISTENING: &str = "DO $$ BEGIN
    FOR attempt IN 1..1000 LOOP
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query = 'LISTEN \"dblock_' || '{table}'::regclass::oid || '\"';
        IF FOUND THEN RETURN; END IF;
        PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
    END LOOP;
    RAISE EXCEPTION 'nobody listens';
END $$";

/// The server ends the listening connection, and the lock changes hands all the same.
async fn a_connection_that_hears_nothing_any_more_only_slows_things(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    for _ in 0..3 {
        let guard = locks.lock("key").options(&long()).acquire().await.unwrap();
        let waiter = tokio::spawn({
            let other = other.clone();
            async move { other.lock("key").wait(LONG).acquire().await }
        });
        backend.until("key", LONG, |row| row.wanted_until > row.now).await;
        backend.execute(END_LISTENING).await;
        guard.release().await.unwrap();
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
}
