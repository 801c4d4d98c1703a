//! Successors in a store without a clock: the first that asks is the successor until its time is over, and
//! gets the lock when the holder's lease ends, however it ends.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{NEXT_TTL, Outcome, Released, Store, WakeUp};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, batch, changes_nothing, existing, force_release, granted, one, until, within,
};
use super::listen::listening;
use super::successor::{busy_behind, next_of, queued, queued_behind};

const PASSED_ON: Outcome = Outcome::Released(Released::PassedOn);

/// A store that queues without a clock.
async fn clockless(fixture: &dyn AnyFixture) -> Option<Arc<dyn Store>> {
    let store = fixture.store().await;
    let can = store.capabilities();
    (can.queues && !can.clock).then_some(store)
}

/// The successor asks again, and others ask, however long they have waited: it remains the successor. It can
/// withdraw, once.
pub async fn successor_without_a_clock_keeps_its_place(fixture: &dyn AnyFixture) {
    let Some(store) = clockless(fixture).await else {
        return;
    };
    let other = fixture.store().await;
    let (holder, next) = (Asker::new("place"), Asker::new("place"));
    granted(&*store, holder.acquire(LONG)).await;
    for _ in 0..2 {
        let (named, next_ttl) = queued_behind(one(&*store, next.queue(Duration::ZERO)).await);
        assert!(holder.is(&named), "{named:?}");
        assert_eq!(next_ttl, NEXT_TTL);
    }
    for ask in [
        Asker::new("place").queue(Duration::ZERO),
        Asker::new("place").queue(LONG),
        Asker::new("place").acquire(LONG),
        next.acquire(LONG),
    ] {
        let named = busy_behind(one(&*other, ask).await);
        assert!(holder.is(&named), "{named:?}");
    }
    let row = existing(&*other, &holder.key).await;
    assert_eq!(
        (row.lease_id, next_of(&row).lease_id),
        (holder.lease_id, next.lease_id)
    );
    assert!(row.wanted_until > row.now, "a successor waits, too");
    one(&*other, holder.extend(2, 2 * LONG)).await;
    let extended = one(&*store, holder.extend(1, LONG)).await;
    assert!(
        matches!(extended, Outcome::Extended { wanted: true, .. }),
        "{extended:?}"
    );
    assert_eq!(
        one(&*other, next.extend(1, LONG)).await,
        Outcome::Lost,
        "it holds nothing"
    );

    assert_eq!(one(&*other, next.release()).await, Outcome::Withdrawn);
    assert_eq!(changes_nothing(&*store, next.release()).await, Outcome::Lost);
    assert_eq!(
        one(&*store, holder.release()).await,
        Outcome::Released(Released::Freed)
    );
    assert_eq!(existing(&*store, &holder.key).await.reentrant_count, 0);
}

/// Each release passes the lock on, alone and in a batch, with a larger token. The former holder can change
/// nothing; the new one can ask, extend and release. A release by force passes nothing on.
pub async fn lock_without_a_clock_is_passed_on(fixture: &dyn AnyFixture) {
    let Some(store) = clockless(fixture).await else {
        return;
    };
    let other = fixture.store().await;
    let (mut holder, first) = queued(&*store, "again").await;
    let mut next = first;
    for _ in 0..4 {
        let before = existing(&*store, &holder.key).await;
        let (freed, _) = queued(&*store, "beside").await;
        let answers = batch(&*other, &[holder.release(), freed.release()]).await;
        assert_eq!(answers, [PASSED_ON; 2]);
        let after = existing(&*store, &holder.key).await;
        assert_eq!((after.lease_id, after.next.as_ref()), (next.lease_id, None));
        assert!(
            after.fence_token > before.fence_ceiling,
            "{after:?} after {before:?}"
        );
        let grant = granted(&*other, next.acquire(LONG)).await;
        assert_eq!(grant.fence_token, after.fence_token);
        let extended = one(&*other, next.extend(1, LONG)).await;
        assert!(
            matches!(extended, Outcome::Extended { remaining, .. } if remaining >= LONG),
            "{extended:?}"
        );
        // By now the store has written when the lock was passed on.
        for late in [holder.release(), holder.extend(1, LONG)] {
            assert_eq!(changes_nothing(&*store, late).await, Outcome::Lost);
        }
        holder = next;
        next = Asker::new("again");
        queued_behind(one(&*store, next.queue(Duration::ZERO)).await);
        assert!(force_release(&*store, &freed.key).await);
    }
    assert!(force_release(&*other, &holder.key).await);
    let row = existing(&*store, &holder.key).await;
    assert_eq!((row.reentrant_count, row.next), (0, None));
    assert_eq!(changes_nothing(&*store, next.release()).await, Outcome::Lost);
}

/// A holder that goes away: the successor holds the lock as soon as the lease has ended.
pub async fn lock_without_a_clock_is_passed_on_by_the_end_of_its_lease(fixture: &dyn AnyFixture) {
    let Some(store) = clockless(fixture).await else {
        return;
    };
    let (holder, next) = (Asker::new("gone"), Asker::new("gone"));
    granted(&*store, holder.acquire(SHORT)).await;
    within("the lease to end", async {
        while let Outcome::Queued { .. } = one(&*store, next.queue(Duration::ZERO)).await {
            tokio::time::sleep(SHORT).await;
        }
    })
    .await;
    let row = existing(&*store, &holder.key).await;
    assert_eq!((row.lease_id, row.next), (next.lease_id, None));
}

/// A successor that asks no more: its time ends, and another caller can be the successor.
pub async fn place_without_a_clock_ends_by_itself(fixture: &dyn AnyFixture) {
    let Some(store) = clockless(fixture).await else {
        return;
    };
    let (holder, next) = queued(&*store, "lapses").await;
    until(&*store, &holder.key, "the place to end", |row| row.next.is_none()).await;
    assert_eq!(changes_nothing(&*store, next.release()).await, Outcome::Lost);
    let third = Asker::new("lapses");
    queued_behind(one(&*store, third.queue(Duration::ZERO)).await);
    assert_eq!(one(&*store, holder.release()).await, PASSED_ON);
    assert_eq!(existing(&*store, &holder.key).await.lease_id, third.lease_id);
}

/// The successor's process is told that it has the lock, and others that the lock was released.
pub async fn pass_on_without_a_clock_is_told(fixture: &dyn AnyFixture) {
    let Some(store) = clockless(fixture).await else {
        return;
    };
    if !(store.capabilities().wake_ups && fixture.hears()) {
        return;
    }
    let (mut own, task) = listening(Arc::clone(&store)).await;
    let other = fixture.store().await;
    let (mut others, other_task) = listening(Arc::clone(&other)).await;
    let (holder, next) = queued(&*store, "told").await;
    one(&*other, Asker::new("told").acquire_wanting(LONG)).await;
    one(&*fixture.store().await, holder.release()).await;
    let token = existing(&*store, &holder.key).await.fence_token;
    let told = within("the pass-on to be told", own.recv()).await;
    let expected = WakeUp::passed_on(holder.key.clone(), next.lease_id, token);
    assert_eq!(told, Some(expected));
    let told = within("the release to be told", others.recv()).await;
    assert_eq!(told, Some(WakeUp::Released(holder.key)));
    task.abort();
    other_task.abort();
}
