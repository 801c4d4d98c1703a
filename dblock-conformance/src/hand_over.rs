//! Local hand-overs: the tokens that a grant keeps free, and the new caller, which is written later.

use std::time::Duration;

use dblock_core::store::{HandedOver, Outcome, Released, Store};
use uuid::Uuid;

use super::AnyFixture;
use super::context::{
    Asker, BRIEF, LONG, ROUNDS, SHORT, assert_about, assert_left, batch, changed, changes_nothing, existing,
    force_release, former_holder, granted, granted_briefly, one, revoke, until_not_held,
};

const SPARE: u32 = 1_000;

fn handed_over_to(fence_token: i64) -> HandedOver {
    HandedOver::new(Uuid::now_v7(), "host/1 the next caller", fence_token)
}

/// A grant keeps as many tokens free as it was asked to. However its lease ends, the next token is above them.
pub async fn spare_tokens_are_never_given_again(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let mut ceiling = 0;
    let take = async |store: &dyn Store, ttl: Duration, above: i64| -> (Asker, i64) {
        let mut asker = Asker::new("spare");
        let token = granted_briefly(store, &mut asker, ttl, SPARE).await.fence_token;
        assert!(token > above, "token {token} after the ceiling {above}");
        let row = existing(store, &asker.key).await;
        assert_eq!(
            (row.fence_token, row.fence_ceiling),
            (token, token + i64::from(SPARE))
        );
        (asker, row.fence_ceiling)
    };
    for _ in 0..2 {
        let (released, kept) = take(&*store, LONG, ceiling).await;
        ceiling = kept;
        one(&*store, released.release()).await;

        let (forced, kept) = take(&*other, LONG, ceiling).await;
        ceiling = kept;
        assert!(force_release(&*store, &forced.key).await);

        let (expired, kept) = take(&*store, SHORT, ceiling).await;
        ceiling = kept;
        until_not_held(&*other, &expired.key).await;
    }
    let plain = granted(&*store, Asker::new("spare").acquire(LONG)).await;
    assert!(plain.fence_token > ceiling);
}

/// An acquire is repeated after a lost reply: the same token, and no more tokens are kept free.
pub async fn spare_tokens_are_kept_once(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let asker = Asker::new("once");
    let first = granted(&*store, asker.acquire_with_spare(LONG, SPARE)).await;
    let before = existing(&*store, &asker.key).await;
    for spare in [SPARE, SPARE * 2, 0] {
        let again = granted(&*store, asker.acquire_with_spare(LONG, spare)).await;
        assert_eq!(again.fence_token, first.fence_token);
        let after = existing(&*store, &asker.key).await;
        assert_eq!(after.fence_ceiling, before.fence_ceiling);
    }
}

/// Extend after a local hand-over: owner, holder and token are the next caller's, the lease and its ceiling do
/// not change. Others are told of the next caller. A repeated extend, and later ones without it, change none of
/// that.
pub async fn local_hand_over_is_written(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let first = Asker::with_holder("hand-over", "host/1 the first");
    let token = granted(&*store, first.acquire_with_spare(LONG, SPARE))
        .await
        .fence_token;
    let before = existing(&*store, &first.key).await;
    let mut last = before.clone();
    for step in [1, 2, i64::from(SPARE)] {
        let next = handed_over_to(token + step);
        for _ in 0..2 {
            let request = first.hand_over(2, LONG * 2, &next);
            let outcome = one(&*store, request).await;
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
            last = existing(&*other, &first.key).await;
            let written = changed(before.clone(), |it| {
                it.owner = next.owner;
                it.holder = next.holder.to_string();
                it.fence_token = next.fence_token;
                it.reentrant_count = 2;
                it.expire_at = last.expire_at;
                it.now = last.now;
            });
            assert_eq!(last, written);
            assert_left(&last, LONG * 2);
        }
    }
    one(&*store, first.extend(1, LONG)).await;
    let row = existing(&*other, &first.key).await;
    assert_eq!(
        (row.owner, &row.holder, row.fence_token),
        (last.owner, &last.holder, last.fence_token)
    );

    let busy = one(&*other, Asker::new("hand-over").acquire(LONG)).await;
    let Outcome::Busy(holder) = busy else {
        panic!("{busy:?}")
    };
    assert_eq!(
        (holder.owner, holder.name, holder.fence_token),
        (last.owner, last.holder, last.fence_token)
    );
    assert_eq!(
        one(&*store, first.release()).await,
        Outcome::Released(Released::Freed),
        "the lease is the first one's, whoever has it now"
    );
}

/// An extend that was given up may be carried out after a later one: it extends, and names no caller.
pub async fn late_local_hand_over_is_not_written(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let first = Asker::new("late-name");
    let token = granted(&*store, first.acquire_with_spare(LONG, SPARE))
        .await
        .fence_token;
    let (former, last) = (handed_over_to(token + 1), handed_over_to(token + 2));
    // Alone, and in a batch beside another key.
    for batched in [false, true] {
        let beside = Asker::new("late-name-beside");
        for (next, named) in [(&last, &last), (&former, &last)] {
            let mut requests = vec![first.hand_over(1, LONG, next)];
            if batched {
                requests.push(beside.extend(1, LONG));
            }
            let answers = store.apply(&requests).await;
            assert!(
                matches!(answers[0], Ok(Outcome::Extended { .. })),
                "{:?}",
                answers[0]
            );
            let row = existing(&*store, &first.key).await;
            assert_eq!(
                (row.owner, &*row.holder, row.fence_token),
                (named.owner, &*named.holder, named.fence_token)
            );
        }
    }
}

/// A brief lease with its first token, and the caller that got it by a local hand-over.
async fn handed_over(store: &dyn Store, name: &str) -> (Asker, i64, HandedOver) {
    for _ in 0..ROUNDS {
        let mut first = Asker::new(name);
        let token = granted_briefly(store, &mut first, BRIEF, SPARE).await.fence_token;
        let next = handed_over_to(token + 7);
        match one(store, first.hand_over(1, BRIEF, &next)).await {
            Outcome::Extended { .. } => return (first, token, next),
            // Too late.
            Outcome::Lost => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody hands over a lease of {BRIEF:?}");
}

/// A takeover names the caller that had the lease last as the former holder.
pub async fn local_hand_over_is_named_by_a_takeover(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (first, token, next) = handed_over(&*store, "hand-over").await;
    until_not_held(&*store, &first.key).await;
    let grant = granted(&*store, Asker::new("hand-over").acquire(LONG)).await;
    if let Some(former) = former_holder(&*store, &grant) {
        assert_eq!((former.owner, former.fence_token), (next.owner, next.fence_token));
    }
    assert!(grant.fence_token > token + i64::from(SPARE));
}

/// A local hand-over of another lease, or of one that is over: lost, and nothing is written.
pub async fn local_hand_over_of_another_lease_changes_nothing(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (holder, mut stranger) = (Asker::new("hand-over"), Asker::new("hand-over"));
    let grant = granted(&*store, holder.acquire_with_spare(LONG, SPARE)).await;
    let next = handed_over_to(grant.fence_token + 1);
    let refused = async |asker: &Asker| {
        let outcome = changes_nothing(&*store, asker.hand_over(2, LONG, &next)).await;
        assert_eq!(outcome, Outcome::Lost);
    };
    refused(&stranger).await;
    one(&*store, holder.release()).await;
    refused(&holder).await;

    let other = Asker::new("hand-over");
    granted(&*store, other.acquire_with_spare(LONG, SPARE)).await;
    refused(&holder).await;
    one(&*store, other.release()).await;

    granted_briefly(&*store, &mut stranger, SHORT, SPARE).await;
    until_not_held(&*store, &stranger.key).await;
    refused(&stranger).await;
}

/// A revoked lease may be handed over, which does not lengthen it.
pub async fn local_hand_over_of_a_revoked_lease_is_written(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let first = Asker::new("hand-over");
    let grant = granted(&*store, first.acquire_with_spare(LONG, SPARE)).await;
    let before = existing(&*store, &first.key).await;
    assert!(revoke(&*store, &first.key).await);
    let next = handed_over_to(grant.fence_token + 1);
    let outcome = one(&*store, first.hand_over(1, LONG * 2, &next)).await;
    assert!(
        matches!(outcome, Outcome::Extended { revoked: true, .. }),
        "{outcome:?}"
    );
    let row = existing(&*store, &first.key).await;
    assert_eq!((row.owner, row.fence_token), (next.owner, next.fence_token));
    assert_eq!((row.expire_at, row.revoked), (before.expire_at, true));
}

/// A token above those that were kept free: as many above it are kept free, alone and in a batch, and no later
/// grant has them. A store that does not raise tokens need not do so.
pub async fn local_hand_over_above_the_ceiling_moves_it(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !store.capabilities().raises_tokens {
        return;
    }
    let (alone, beside) = (Asker::new("above"), Asker::new("above-beside"));
    granted(&*store, beside.acquire(LONG)).await;
    let mut token = granted(&*store, alone.acquire_with_spare(LONG, SPARE))
        .await
        .fence_token;
    let spare = i64::from(SPARE);
    // The last free token, the first above, and one far above.
    for step in [spare, 1, 1_000_000_000_000] {
        let before = existing(&*store, &alone.key).await;
        token += step;
        let next = handed_over_to(token);
        let mut requests = vec![alone.hand_over(1, LONG, &next)];
        if step > 1 {
            requests.push(beside.extend(1, LONG));
        }
        batch(&*store, &requests).await;
        let row = existing(&*store, &alone.key).await;
        let kept = before.fence_ceiling - before.fence_token;
        let raised = if token > before.fence_ceiling {
            token + kept
        } else {
            before.fence_ceiling
        };
        assert_eq!((row.fence_token, row.fence_ceiling), (token, raised), "by {step}");
    }
    let ceiling = existing(&*store, &alone.key).await.fence_ceiling;
    one(&*store, alone.release()).await;
    let next = granted(&*store, Asker::new("above").acquire(LONG)).await;
    assert_eq!(next.fence_token, ceiling + 1);
}
