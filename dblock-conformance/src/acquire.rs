//! Acquire, by the state of the row.

use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Outcome, Store};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, assert_about, assert_over, assert_told, changed, changes_nothing, existing,
    former_holder, granted, granted_briefly, left, one, revoke, row, until_not_held,
};

/// Sees that a row is what a grant to `asker` makes it.
fn assert_granted_row(store: &dyn Store, row: &LockRow, asker: &Asker, fence_token: i64, ttl: Duration) {
    assert_eq!(row.owner, asker.owner);
    assert_eq!(row.lease_id, asker.lease_id);
    assert_eq!(row.holder, asker.holder);
    assert_eq!(row.reentrant_count, 1);
    assert_eq!(row.fence_token, fence_token);
    assert_eq!(row.fence_ceiling, fence_token);
    assert!(!row.revoked);
    assert!(row.acquired_at <= row.now, "granted in the future: {row:?}");
    assert!(row.is_held());
    if !store.capabilities().clock {
        return;
    }
    assert!(
        fence_token >= row.acquired_at.as_micros(),
        "the token is not above the clock: {row:?}"
    );
    let length = row.expire_at.since(row.acquired_at);
    let difference = length.abs_diff(ttl);
    assert!(
        difference < Duration::from_millis(10),
        "the lease is {length:?} long instead of {ttl:?}"
    );
}

/// Acquire of an absent row: it is inserted as held.
pub async fn absent_row_is_granted(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("absent");
    assert_eq!(row(&*store, &asker.key).await, None);
    let grant = granted(&*store, asker.acquire(LONG)).await;
    assert!(grant.fence_token > 0);
    assert_about(grant.remaining, LONG);
    assert_eq!(grant.taken_over, None);
    assert!(!grant.wanted);

    let row = existing(&*fixture.store().await, &asker.key).await;
    assert_granted_row(&*store, &row, &asker, grant.fence_token, LONG);
    assert_eq!(row.wanted_until, Timestamp::EPOCH);
}

/// Acquire of a row that was released: it becomes held, with a larger token.
pub async fn free_row_is_granted(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let first = Asker::with_holder("free", "first");
    let before = granted(&*store, first.acquire(LONG)).await;
    one(&*store, first.release()).await;

    let second = Asker::with_holder("free", "second");
    let grant = granted(&*store, second.acquire(LONG * 2)).await;
    assert_eq!(grant.taken_over, None, "a free row has nobody to take over from");
    assert!(grant.fence_token > before.fence_token);
    assert_about(grant.remaining, LONG * 2);
    assert_granted_row(
        &*store,
        &existing(&*store, &second.key).await,
        &second,
        grant.fence_token,
        LONG * 2,
    );
}

/// Acquire of a row that another lease holds: busy, with its holder; the row does not change.
pub async fn row_held_by_another_is_busy(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let holder = Asker::with_holder("held", "the holder");
    let grant = granted(&*store, holder.acquire(LONG)).await;
    let outcome = changes_nothing(&*other, Asker::new("held").acquire(SHORT)).await;
    let Outcome::Busy(named) = outcome else {
        panic!("{outcome:?} instead of Busy")
    };
    assert!(holder.is(&named), "{named:?} instead of {holder:?}");
    assert_eq!(named.fence_token, grant.fence_token);
    assert_told(&*other, &named, LONG);
}

/// Acquire of an expired row: it becomes held, and the former holder is named.
pub async fn expired_row_is_taken_over(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let mut former = Asker::with_holder("expired", "the former holder");
    let lost = granted_briefly(&*store, &mut former, SHORT, 0).await;
    until_not_held(&*other, &former.key).await;

    let next = Asker::with_holder("expired", "the next holder");
    let grant = granted(&*other, next.acquire(LONG)).await;
    if let Some(holder) = former_holder(&*other, &grant) {
        assert!(former.is(&holder), "{holder:?} instead of {former:?}");
        assert_eq!(holder.fence_token, lost.fence_token);
        assert_eq!(holder.remaining, Some(Duration::ZERO));
    }
    assert!(grant.fence_token > lost.fence_token);
    assert_granted_row(
        &*store,
        &existing(&*store, &next.key).await,
        &next,
        grant.fence_token,
        LONG,
    );
}

/// Acquire by the lease that holds the row, as after a lost reply: the same token, the same expiry, count 1.
pub async fn repeated_acquire_is_the_same_grant(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let asker = Asker::new("repeated");
    let first = granted(&*store, asker.acquire(LONG)).await;
    let before = existing(&*store, &asker.key).await;
    one(&*store, asker.extend(3, SHORT)).await;

    let again = granted(&*other, asker.acquire(LONG * 2)).await;
    assert_eq!(again.fence_token, first.fence_token);
    assert_eq!(again.taken_over, None);
    assert_about(again.remaining, LONG);
    let after = existing(&*store, &asker.key).await;
    assert_eq!(
        after,
        changed(before, |it| it.now = after.now),
        "count 1, and the rest as granted"
    );
}

/// Acquire by the lease that holds the row, after it was revoked: it stays revoked.
pub async fn repeated_acquire_does_not_undo_a_revocation(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("revoked");
    granted(&*store, asker.acquire(LONG)).await;
    assert!(revoke(&*store, &asker.key).await);
    granted(&*store, asker.acquire(LONG)).await;
    assert!(existing(&*store, &asker.key).await.revoked);
}

/// Acquire by a lease that was released before the acquire arrived again: lost, and the row stays free.
pub async fn released_lease_is_not_granted_again(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("released");
    let token = granted(&*store, asker.acquire(LONG)).await.fence_token;
    one(&*store, asker.release()).await;
    assert_over(&*store, &asker, token).await;
}

/// Acquire by a lease that has expired: lost, and the row stays expired until another lease takes it.
pub async fn expired_lease_is_not_granted_again(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let mut asker = Asker::new("expired");
    let token = granted_briefly(&*store, &mut asker, SHORT, 0).await.fence_token;
    until_not_held(&*store, &asker.key).await;
    assert_over(&*store, &asker, token).await;
    if !store.capabilities().former_leases {
        return;
    }
    let row = existing(&*store, &asker.key).await;
    assert_eq!((row.reentrant_count, left(&row)), (1, Duration::ZERO));
}
