//! `wanted_until`: tells the holder that a caller waits.

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Outcome, Released};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, assert_about, changed, changes_nothing, existing, granted, one, until,
};

/// A busy acquire writes until when it waits, never an earlier time, and nothing else.
pub async fn wanted_is_only_extended(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let holder = Asker::new("wanted");
    granted(&*store, holder.acquire(LONG)).await;
    let before = existing(&*store, &holder.key).await;

    let waiter = Asker::new("wanted");
    let outcome = one(&*other, waiter.acquire_wanting(LONG)).await;
    assert!(
        matches!(&outcome, Outcome::Busy(named) if holder.is(named)),
        "{outcome:?}"
    );
    let first = existing(&*store, &holder.key).await;
    assert_about(first.wanted_until.since(first.now), LONG);
    assert_eq!(
        changed(first.clone(), |it| {
            it.wanted_until = before.wanted_until;
            it.now = before.now;
        }),
        before
    );

    changes_nothing(&*other, waiter.acquire_wanting(LONG / 2)).await;
    changes_nothing(&*other, waiter.acquire(LONG)).await;
    // Much longer, because a store need not lengthen a wish of which half is left.
    one(&*other, Asker::new("wanted").acquire_wanting(LONG * 3)).await;
    let last = existing(&*store, &holder.key).await;
    assert_about(last.wanted_until.since(last.now), LONG * 3);
}

/// A reply to the holder says whether others wait, and a grant does not clear the others' wish.
pub async fn wanted_is_reported_to_the_holder(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let holder = Asker::new("wanted");
    granted(&*store, holder.acquire(LONG)).await;
    // The holder's own ask is no wish.
    assert!(!granted(&*store, holder.acquire_wanting(LONG)).await.wanted);
    one(&*other, Asker::new("wanted").acquire_wanting(LONG)).await;

    assert!(granted(&*store, holder.acquire(LONG)).await.wanted);
    let extended = one(&*store, holder.extend(1, LONG)).await;
    assert!(
        matches!(extended, Outcome::Extended { wanted: true, .. }),
        "{extended:?}"
    );
    let released = one(&*store, holder.release()).await;
    assert_eq!(released, Outcome::Released(Released::Freed));
    if store.capabilities().former_leases {
        let again = one(&*store, holder.release()).await;
        assert_eq!(again, Outcome::Released(Released::Before));
    }
    let wanted_until = existing(&*store, &holder.key).await.wanted_until;
    assert!(
        granted(&*other, Asker::new("wanted").acquire_wanting(LONG * 2))
            .await
            .wanted
    );
    if store.capabilities().former_leases {
        let after = existing(&*store, &holder.key).await.wanted_until;
        assert_eq!(after, wanted_until, "a grant is not a wait");
    }
}

/// A wish ends when its time is over.
pub async fn wanted_runs_out(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let holder = Asker::new("wanted");
    granted(&*store, holder.acquire(LONG)).await;
    one(&*store, Asker::new("wanted").acquire_wanting(SHORT)).await;
    assert_ne!(
        existing(&*store, &holder.key).await.wanted_until,
        Timestamp::EPOCH
    );
    until(&*store, &holder.key, "wanted_until to pass", |row| {
        row.wanted_until <= row.now
    })
    .await;
    let extended = one(&*store, holder.extend(1, LONG)).await;
    assert!(
        matches!(extended, Outcome::Extended { wanted: false, .. }),
        "{extended:?}"
    );
    assert_eq!(
        one(&*store, holder.release()).await,
        Outcome::Released(Released::Freed)
    );
}
