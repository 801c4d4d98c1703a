//! Extend and Release, by the holder and by others.

use dblock_core::store::{Outcome, Released, Store};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, assert_about, assert_left, changed, changes_nothing, existing, granted,
    granted_briefly, one, row, until_not_held,
};

/// Extend by the holder: the count is the given one, however often it is sent, and the lease is longer.
pub async fn extend_writes_the_count_and_lengthens(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let asker = Asker::new("extend");
    granted(&*store, asker.acquire(LONG)).await;
    let before = existing(&*store, &asker.key).await;
    for count in [2, 2, 5, 1] {
        let outcome = one(&*other, asker.extend(count, LONG * 2)).await;
        let Outcome::Extended {
            remaining,
            revoked,
            wanted,
            ..
        } = outcome
        else {
            panic!("{outcome:?}")
        };
        assert_about(remaining, LONG * 2);
        assert!(!revoked && !wanted, "{outcome:?}");
        let row = existing(&*store, &asker.key).await;
        assert_eq!(row.reentrant_count, count);
        assert_left(&row, LONG * 2);
        let rest = changed(row, |it| {
            it.reentrant_count = 1;
            it.expire_at = before.expire_at;
            it.now = before.now;
        });
        assert_eq!(rest, before, "only the count and the expiry change");
    }
}

/// Extend with a short ttl: the count is written, the expiry does not change.
pub async fn extend_never_shortens(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("shorten");
    granted(&*store, asker.acquire(LONG)).await;
    let before = existing(&*store, &asker.key).await;
    let outcome = one(&*store, asker.extend(2, SHORT)).await;
    let Outcome::Extended { remaining, .. } = outcome else {
        panic!("{outcome:?}")
    };
    assert_about(remaining, LONG);
    let row = existing(&*store, &asker.key).await;
    assert_eq!(
        row,
        changed(before, |it| {
            it.reentrant_count = 2;
            it.now = row.now;
        })
    );
}

/// Extend by anybody but the holder: lost, and nothing is written, not even a row.
pub async fn extend_of_another_lease_changes_nothing(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (holder, stranger) = (Asker::new("extend"), Asker::new("extend"));
    assert_eq!(one(&*store, stranger.extend(1, LONG)).await, Outcome::Lost);
    assert_eq!(row(&*store, &stranger.key).await, None, "Extend made a row");

    granted(&*store, holder.acquire(LONG)).await;
    assert_eq!(
        changes_nothing(&*store, stranger.extend(7, LONG * 2)).await,
        Outcome::Lost
    );
    // The same owner under another lease is not the holder either.
    let same_owner = Asker {
        lease_id: stranger.lease_id,
        ..holder.clone()
    };
    assert_eq!(
        changes_nothing(&*store, same_owner.extend(7, LONG * 2)).await,
        Outcome::Lost
    );

    one(&*store, holder.release()).await;
    assert_eq!(
        changes_nothing(&*store, holder.extend(1, LONG)).await,
        Outcome::Lost
    );
    assert_eq!(
        changes_nothing(&*store, stranger.extend(1, LONG)).await,
        Outcome::Lost
    );
}

/// Release by the holder: the count is 0, the rest of the row does not change; a repeated release frees nothing.
/// Where rows do not outlive their leases, the row is gone, and a repeated release is lost.
pub async fn release_frees_once(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let asker = Asker::new("release");
    granted(&*store, asker.acquire(LONG)).await;
    let before = existing(&*store, &asker.key).await;
    one(&*store, asker.extend(3, SHORT)).await;
    assert_eq!(
        one(&*store, asker.release()).await,
        Outcome::Released(Released::Freed)
    );
    if !store.capabilities().former_leases {
        assert_eq!(row(&*store, &asker.key).await, None);
        assert_eq!(one(&*other, asker.release()).await, Outcome::Lost);
        return;
    }
    let row = existing(&*store, &asker.key).await;
    assert_eq!(
        row,
        changed(before, |it| {
            it.reentrant_count = 0;
            it.now = row.now;
        })
    );
    for _ in 0..2 {
        let again = changes_nothing(&*other, asker.release()).await;
        assert_eq!(again, Outcome::Released(Released::Before));
    }
}

/// Release by anybody but the holder: lost, and nothing is written, not even a row.
pub async fn release_of_another_lease_changes_nothing(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (holder, stranger) = (Asker::new("release"), Asker::new("release"));
    assert_eq!(one(&*store, stranger.release()).await, Outcome::Lost);
    assert_eq!(row(&*store, &stranger.key).await, None, "Release made a row");

    granted(&*store, holder.acquire(LONG)).await;
    let same_owner = Asker {
        lease_id: stranger.lease_id,
        ..holder.clone()
    };
    assert_eq!(changes_nothing(&*store, stranger.release()).await, Outcome::Lost);
    assert_eq!(
        changes_nothing(&*store, same_owner.release()).await,
        Outcome::Lost
    );
    one(&*store, holder.release()).await;
    assert_eq!(changes_nothing(&*store, stranger.release()).await, Outcome::Lost);
}

/// Sees that nothing that `former` sends changes the row.
async fn assert_powerless(store: &dyn Store, former: &Asker) {
    assert_eq!(
        changes_nothing(store, former.extend(1, LONG)).await,
        Outcome::Lost
    );
    assert_eq!(changes_nothing(store, former.release()).await, Outcome::Lost);
}

/// Extend and Release of an expired lease that nobody took over: lost. It is never revived.
pub async fn expired_lease_stays_lost(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let mut former = Asker::new("sticky");
    granted_briefly(&*store, &mut former, SHORT, 0).await;
    until_not_held(&*store, &former.key).await;
    assert_powerless(&*store, &former).await;
    assert_powerless(&*store, &former).await;
}

/// Late requests of a holder whose lease was taken over.
pub async fn former_holder_changes_nothing_after_a_takeover(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (mut former, next) = (Asker::new("takeover"), Asker::new("takeover"));
    granted_briefly(&*store, &mut former, SHORT, 0).await;
    until_not_held(&*store, &former.key).await;
    granted(&*other, next.acquire(LONG)).await;
    assert_powerless(&*store, &former).await;
    let late = changes_nothing(&*store, former.acquire(LONG)).await;
    assert!(
        matches!(&late, Outcome::Busy(holder) if next.is(holder)),
        "{late:?}"
    );
}

/// Late requests of a lease whose chain holds the key again under a new lease.
pub async fn former_holder_changes_nothing_after_a_new_grant(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let former = Asker::new("again");
    granted(&*store, former.acquire(LONG)).await;
    one(&*store, former.release()).await;
    let again = Asker {
        lease_id: Asker::new("again").lease_id,
        ..former.clone()
    };
    granted(&*store, again.acquire(LONG)).await;
    assert_powerless(&*store, &former).await;
}
