//! Scheduled work: a tick that nobody remembers is not run.

use std::time::{Duration, SystemTime};

use dblock::store::RecordState;
use dblock::{LockManager, LockOptions, OnCrash, Once, Run, RunError, RunOptions};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};

use crate::{Effects, KEY, LONG, PayError, decline, pay, reason, record, run};

on_every_store!(
    a_tick_that_is_too_old_is_refused,
    a_tick_is_never_run_again_when_it_is_forgotten,
    a_tick_ahead_of_the_store_is_remembered_for_longer,
);

on_every_store!(databases: a_tick_that_is_completed_is_remembered_for_longer);

/// That of [`run`].
const HOUR: Duration = Duration::from_hours(1);

const MINUTE: Duration = Duration::from_mins(1);

async fn a_tick_that_is_too_old_is_refused(backend: Backend) {
    let locks = backend.manager().await;
    let (effects, now) = (Effects::default(), SystemTime::now());
    let at = |tick| run(OnCrash::Retry).tick(tick);
    for age in [HOUR, HOUR * 100_000] {
        match reason(pay(&locks, at(now - age), &effects).await) {
            RunError::TickTooOld { age: found, .. } => assert!(found >= age && found < age + MINUTE),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(effects.count(), 0);
    assert!(locks.admin().record::<u32>(KEY).await.unwrap().is_none());
    assert!(backend.the_row(KEY).await.is_free());
    let ran = pay(&locks, at(now - HOUR + MINUTE), &effects).await.unwrap();
    assert_eq!(ran, Once::Ran(1));
    // An outcome that is remembered is known, however old the tick is.
    let again = pay(&locks, at(now - HOUR * 2), &effects).await.unwrap();
    assert_eq!(again, Once::Replayed(1));
}

async fn a_tick_is_never_run_again_when_it_is_forgotten(backend: Backend) {
    let locks = backend.manager().await;
    let (effects, tick) = (Effects::default(), SystemTime::now());
    // Long enough for the first call, even if the machine stalls.
    let options = || {
        let lock = LockOptions::new().ttl(LONG);
        RunOptions::new(Duration::from_secs(5), OnCrash::Retry)
            .lock(lock)
            .tick(tick)
    };
    assert_eq!(pay(&locks, options(), &effects).await.unwrap(), Once::Ran(1));
    while locks.admin().record::<u32>(KEY).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let refused = reason(pay(&locks, options(), &effects).await);
    assert!(matches!(refused, RunError::TickTooOld { .. }), "{refused:?}");
    assert_eq!(effects.count(), 1);
}

async fn a_tick_ahead_of_the_store_is_remembered_for_longer(backend: Backend) {
    let locks = backend.manager().await;
    let effects = Effects::default();
    // A clock that is fast runs the tick before its time.
    let tick = SystemTime::now() + HOUR * 2;
    let options = || run(OnCrash::Retry).tick(tick);
    assert!(matches!(decline(&locks, options()).await, PayError::Declined));
    remembered_until(&locks, RecordState::Failed, tick + HOUR).await;
    assert_eq!(pay(&locks, options(), &effects).await.unwrap(), Once::Ran(1));
    remembered_until(&locks, RecordState::Succeeded, tick + HOUR).await;
    // No time is so far ahead that it cannot be remembered.
    let never = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
    let far = run(OnCrash::Retry).tick(never);
    let far = locks.run_once("far", far, async |_| Ok::<_, PayError>(()));
    assert_eq!(far.await.unwrap(), Once::Ran(()));
}

async fn a_tick_that_is_completed_is_remembered_for_longer(backend: Backend) {
    let locks = backend.manager().await;
    let tick = SystemTime::now() + HOUR * 2;
    let body = async |run: Run| {
        let mut transaction = Transaction::begin(&backend).await;
        transaction.complete(&run, &7).await?;
        transaction.commit().await;
        Ok::<_, PayError>(7)
    };
    let ran = locks
        .run_once(KEY, run(OnCrash::CompleteIn).tick(tick), body)
        .await;
    assert_eq!(ran.unwrap(), Once::Ran(7));
    remembered_until(&locks, RecordState::Succeeded, tick + HOUR).await;
}

/// The record is kept for at least so long, and not for much longer.
async fn remembered_until(locks: &LockManager, state: RecordState, time: SystemTime) {
    let record = record(locks).await;
    // A time has ns, a record µs.
    let until = SystemTime::from(record.keep_until + Duration::from_micros(1));
    assert!(
        record.state == state && until > time && until < time + MINUTE,
        "{record:?}"
    );
}
