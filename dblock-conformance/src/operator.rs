//! Revoke and force-release: what an operator may do.

use dblock_core::store::{Outcome, Released};

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, assert_about, changed, changes_nothing, existing, force_release, granted,
    granted_briefly, key, one, revoke, row, until_not_held,
};

/// Extend of a revoked lease: the holder is told and its count written, but the lease is not lengthened.
pub async fn revoked_lease_is_not_lengthened(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let asker = Asker::new("revoked");
    granted(&*store, asker.acquire(LONG)).await;
    let before = existing(&*store, &asker.key).await;
    assert!(revoke(&*other, &asker.key).await);
    assert!(revoke(&*other, &asker.key).await, "it is still held");

    let outcome = one(&*store, asker.extend(2, LONG * 2)).await;
    let Outcome::Extended {
        remaining,
        revoked: true,
        wanted: false,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_about(remaining, LONG);
    let row = existing(&*store, &asker.key).await;
    assert_eq!(
        row,
        changed(before, |it| {
            it.revoked = true;
            it.reentrant_count = 2;
            it.now = row.now;
        })
    );
    assert_eq!(
        one(&*store, asker.release()).await,
        Outcome::Released(Released::Freed)
    );
}

/// The next lease is not revoked.
pub async fn revocation_ends_with_the_lease(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (first, next) = (Asker::new("revoked"), Asker::new("revoked"));
    granted(&*store, first.acquire(LONG)).await;
    assert!(revoke(&*store, &first.key).await);
    one(&*store, first.release()).await;
    granted(&*store, next.acquire(LONG)).await;
    let outcome = one(&*store, next.extend(1, LONG * 2)).await;
    let Outcome::Extended {
        remaining,
        revoked: false,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_about(remaining, LONG * 2);
}

/// Revoke of an absent, free or expired row: false, and nothing is written.
pub async fn revoke_finds_only_held_rows(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("revoke");
    assert!(!revoke(&*store, &asker.key).await);
    assert_eq!(row(&*store, &asker.key).await, None);

    granted(&*store, asker.acquire(LONG)).await;
    one(&*store, asker.release()).await;
    assert!(!revoke(&*store, &asker.key).await);

    granted_briefly(&*store, &mut Asker::new("revoke"), SHORT, 0).await;
    until_not_held(&*store, &asker.key).await;
    assert!(!revoke(&*store, &asker.key).await);
    assert!(!existing(&*store, &asker.key).await.revoked);
}

/// Force-release frees the key, and the former holder's requests find nothing.
pub async fn force_release_frees_at_once(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (former, next) = (Asker::new("force"), Asker::new("force"));
    let bystander = Asker::new("force2");
    let lost = granted(&*store, former.acquire(LONG)).await;
    granted(&*store, bystander.acquire(LONG)).await;
    let before = existing(&*store, &former.key).await;
    assert!(force_release(&*other, &former.key).await);

    let row = existing(&*store, &former.key).await;
    assert_eq!(row.reentrant_count, 0);
    assert_ne!(
        row.lease_id, former.lease_id,
        "the former lease must not be found again"
    );
    if store.capabilities().former_leases {
        assert_eq!(
            (row.fence_token, row.fence_ceiling),
            (before.fence_token, before.fence_ceiling)
        );
    }
    assert_eq!(
        changes_nothing(&*store, former.extend(1, LONG)).await,
        Outcome::Lost
    );
    assert_eq!(changes_nothing(&*store, former.release()).await, Outcome::Lost);
    assert!(
        existing(&*store, &bystander.key).await.is_held(),
        "another key was freed"
    );

    let grant = granted(&*store, next.acquire(LONG)).await;
    assert_eq!(grant.taken_over, None);
    assert!(grant.fence_token > lost.fence_token);
    assert_eq!(
        changes_nothing(&*store, former.extend(1, LONG)).await,
        Outcome::Lost
    );
    assert_eq!(changes_nothing(&*store, former.release()).await, Outcome::Lost);
}

/// Force-release of an absent, free or expired row: false.
pub async fn force_release_finds_only_held_rows(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    assert!(!force_release(&*store, &key("nobody")).await);
    assert_eq!(row(&*store, &key("nobody")).await, None);

    let asker = Asker::new("force");
    granted(&*store, asker.acquire(LONG)).await;
    one(&*store, asker.release()).await;
    assert!(!force_release(&*store, &asker.key).await);
    granted_briefly(&*store, &mut Asker::new("force"), SHORT, 0).await;
    until_not_held(&*store, &asker.key).await;
    assert!(!force_release(&*store, &asker.key).await);
}
