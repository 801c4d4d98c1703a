//! Waiting: what a waiter writes, when its wait ends, what it is told, and that it is woken.

use std::time::Duration;

use dblock::{LockError, LockManager, LockOptions};
use tokio::time::Instant;

use super::AnyFixture;
use super::setup::{LONG, Setup, is_free};

/// A caller that waits writes that into the row and changes nothing else. A dropped one does not enter.
pub async fn who_waits_holds_nothing(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (holder, other) = (setup.manager().await, setup.manager().await);
    let guard = holder.lock("key").acquire().await.unwrap();
    let granted = setup.the_row("key").await;
    let waiting = tokio::spawn(async move {
        let guard = other.lock("key").wait(LONG).acquire().await;
        guard.map(|guard| guard.fence_token())
    });
    let wanted = setup.until("key", |row| row.wanted_until > row.now).await;
    assert_eq!(
        (
            wanted.lease_id,
            wanted.reentrant_count,
            wanted.fence_token,
            wanted.expire_at
        ),
        (granted.lease_id, 1, granted.fence_token, granted.expire_at),
        "waiting changes nothing of the holder's",
    );
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    guard.release().await.unwrap();
    // An acquire that was on its way may be granted, and is released at once.
    setup.until("key", is_free).await;
}

/// While another owner holds the lock, `try_acquire` returns `None` in this process and in another: at once,
/// or when its wait is over.
pub async fn try_acquire_gives_none_when_busy(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let guard = locks.lock("key").try_acquire().await.unwrap().unwrap();
    for wait in [Duration::ZERO, Duration::from_secs(5)] {
        let tries = async |locks: &LockManager, whose: &str| {
            let since = Instant::now();
            let tried = locks.lock("key").wait(wait).try_acquire().await.unwrap();
            assert!(tried.is_none(), "in {whose}: {wait:?}");
            assert!(since.elapsed() >= wait, "in {whose}");
        };
        futures_util::join!(tries(&other, "another process"), tries(&locks, "this process"));
    }
    let waiting = other.lock("key").wait(LONG).try_acquire();
    let release = async {
        setup.until("key", |row| row.wanted_until > row.now).await;
        guard.release().await.unwrap();
    };
    let (got, ()) = futures_util::join!(waiting, release);
    assert!(got.unwrap().is_some(), "it got free while the caller waited");
}

/// Busy names the key, the holder, its token and what is left of its lease.
pub async fn busy_says_who_and_how_long(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let guard = locks
        .lock("key")
        .options(&LockOptions::new().function("shop::settle"))
        .acquire()
        .await
        .unwrap();
    for refused_by in [&locks, &other] {
        let error = refused_by.lock("key").acquire().await.unwrap_err();
        assert!(
            error.is_busy() && error.is_retryable() && !error.is_store(),
            "{error:?}"
        );
        assert!(error.to_string().contains("shop::settle"), "{error}");
        match error {
            LockError::Busy {
                key, holder, waited, ..
            } => {
                assert_eq!(key.as_str(), "key");
                assert!(waited < Duration::from_secs(10), "{waited:?}");
                let holder = holder.unwrap();
                assert_eq!(
                    (holder.owner, holder.fence_token),
                    (guard.owner(), guard.fence_token())
                );
                match holder.remaining {
                    Some(remaining) => assert!(remaining > LONG / 2 && remaining <= LONG),
                    None => assert!(!setup.has_clock()),
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn expect_timeout(locks: &LockManager, wait: Duration) -> dblock::store::Holder {
    let since = Instant::now();
    let error = locks.lock("key").wait(wait).acquire().await.unwrap_err();
    let took = since.elapsed();
    assert!(took >= wait && took < wait + Duration::from_secs(10), "{took:?}");
    assert!(error.is_busy() && error.is_retryable(), "{error:?}");
    match error {
        LockError::Timeout {
            key, holder, waited, ..
        } => {
            assert_eq!(key.as_str(), "key");
            assert!(waited >= wait && waited <= took, "{waited:?} of {took:?}");
            holder.unwrap()
        }
        other => panic!("{other:?}"),
    }
}

/// A wait ends on time, with the key, the holder and how long was waited; the holder goes on.
pub async fn timeout_says_who_and_how_long(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let guard = locks.lock("key").acquire().await.unwrap();
    let wait = Duration::from_secs(5);
    let holders = tokio::join!(expect_timeout(&locks, wait), expect_timeout(&other, wait));
    for holder in [holders.0, holders.1] {
        assert_eq!(
            (holder.owner, holder.fence_token),
            (guard.owner(), guard.fence_token())
        );
    }
    assert!(!guard.is_lost());
}

/// The second caller in the queue times out by itself, before the first.
pub async fn a_wait_counts_the_whole_queue(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let _guard = other.lock("key").acquire().await.unwrap();
    // Callers behind the first one in the queue time out by themselves, and before it.
    let first = locks.lock("key").wait(Duration::from_secs(15)).acquire();
    let second = expect_timeout(&locks, Duration::from_secs(5));
    let (first, _) = tokio::join!(first, second);
    assert!(matches!(first, Err(LockError::Timeout { .. })), "{first:?}");
}

/// A waiter that is told nothing enters soon after the lock is free: it polls at least every second.
pub async fn a_waiter_gets_in_soon_after_the_release(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    for _ in 0..3 {
        let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
        let token = guard.fence_token();
        let waiting = tokio::spawn({
            let other = other.clone();
            async move { other.lock("key").wait(LONG).acquire().await }
        });
        setup.until("key", |row| row.wanted_until > row.now).await;
        guard.release().await.unwrap();
        let freed = Instant::now();
        let next = waiting.await.unwrap().unwrap();
        let took = freed.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?} after the release");
        assert!(next.fence_token() > token);
        next.release().await.unwrap();
    }
}
