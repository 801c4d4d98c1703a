//! Passing on: the release of a row with a live successor.

use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::store::{NEXT_TTL, Outcome, Released, Store};

use super::AnyFixture;
use super::context::{
    Asker, LONG, ROUNDS, SPARE, assert_about, batch, changed, changes_nothing, existing, granted, one, revoke,
};
use super::successor::{lapsed, queued, queued_behind, queues};

const PASSED_ON: Outcome = Outcome::Released(Released::PassedOn);

const FREED: Outcome = Outcome::Released(Released::Freed);

/// A key that was passed on: its former holder, and its holder for [`NEXT_TTL`].
async fn passed_on(store: &dyn Store, name: &str) -> (Asker, Asker) {
    let (holder, next) = queued(store, name).await;
    assert_eq!(one(store, holder.release()).await, PASSED_ON);
    (holder, next)
}

/// Sees that `after` is what the release of `before` makes of it.
fn assert_passed_on(before: &LockRow, after: &LockRow, to: &Asker) {
    assert!(
        after.acquired_at >= before.now && after.acquired_at <= after.now,
        "passed on at another time: {after:?}"
    );
    let fence_token = after.acquired_at.as_micros().max(before.fence_ceiling + 1);
    let expected = changed(before.clone(), |it| {
        it.owner = to.owner;
        it.holder.clone_from(&to.holder);
        it.lease_id = to.lease_id;
        it.reentrant_count = 1;
        it.fence_token = fence_token;
        it.fence_ceiling = fence_token + i64::from(SPARE);
        it.acquired_at = after.acquired_at;
        it.expire_at = after.acquired_at + NEXT_TTL;
        it.revoked = false;
        it.next = None;
        it.now = after.now;
    });
    assert_eq!(*after, expected);
}

/// Release by the holder, with any count: the successor holds the row, with a token above the ceiling and not
/// revoked. The former holder can change nothing.
pub async fn release_passes_the_row_on(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    // With the ceiling below the clock and above it.
    for spare in [0, u32::MAX] {
        let name = format!("spare {spare}");
        let (holder, next) = (Asker::new(&name), Asker::with_holder(&name, "host/2 next"));
        granted(&*store, holder.acquire_with_spare(LONG, spare)).await;
        queued_behind(one(&*other, next.queue(Duration::ZERO)).await);
        one(&*store, holder.extend(3, LONG)).await;
        assert!(revoke(&*other, &holder.key).await);
        let before = existing(&*store, &holder.key).await;
        assert_eq!(one(&*store, holder.release()).await, PASSED_ON);
        let after = existing(&*store, &holder.key).await;
        assert_passed_on(&before, &after, &next);
        for late in [holder.release(), holder.extend(1, LONG)] {
            assert_eq!(changes_nothing(&*store, late).await, Outcome::Lost);
        }
    }
}

/// Acquire by the lease that the row was passed on to, as after a lost wake-up: the same token, and the lease
/// has its whole length.
pub async fn successor_that_asks_after_the_release_is_granted(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    for _ in 0..ROUNDS {
        let (_, next) = passed_on(&*store, "asks").await;
        let mut before = existing(&*store, &next.key).await;
        for request in [next.acquire(LONG), next.queue(Duration::ZERO)] {
            let outcome = one(&*other, request).await;
            let Outcome::Granted {
                fence_token,
                remaining,
                taken_over: None,
                wanted: true,
                ..
            } = outcome
            else {
                // Too late.
                assert_eq!(outcome, Outcome::Lost);
                continue;
            };
            if !fixture.one_row() && fence_token > before.fence_token {
                // A token that the row had kept free raises no ceiling.
                if fence_token > before.fence_ceiling {
                    before.fence_ceiling += fence_token - before.fence_token;
                }
                before.fence_token = fence_token;
            }
            assert_eq!(fence_token, before.fence_token);
            assert!(remaining <= NEXT_TTL, "{remaining:?}");
            let after = existing(&*store, &next.key).await;
            let now = after.now;
            assert_eq!(after, changed(before.clone(), |it| it.now = now));
        }
        let extended = one(&*other, next.extend(1, LONG)).await;
        if let Outcome::Extended { remaining, .. } = extended {
            assert_about(remaining, LONG);
            let third = one(&*store, Asker::new("asks").acquire(LONG)).await;
            assert!(
                matches!(&third, Outcome::Busy(holder) if next.is(holder)),
                "{third:?}"
            );
            return;
        }
        assert_eq!(extended, Outcome::Lost);
    }
    panic!("nobody asks within {NEXT_TTL:?}");
}

/// A lease that was passed on is passed on again, and each token is larger.
pub async fn tokens_grow_over_every_pass_on(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    for _ in 0..ROUNDS {
        let (_, mut holder) = passed_on(&*store, "again").await;
        for step in 0.. {
            let next = Asker::new("again");
            if !fixture.one_row() {
                // Only an ask takes the second row too.
                one(&*store, holder.acquire(LONG)).await;
            }
            let before = existing(&*store, &next.key).await;
            let outcome = one(&*other, next.queue(Duration::ZERO)).await;
            // Too late.
            if !matches!(outcome, Outcome::Queued { .. }) {
                break;
            }
            let released = one(&*store, holder.release()).await;
            if released == Outcome::Lost {
                break;
            }
            assert_eq!(released, PASSED_ON);
            assert_passed_on(&before, &existing(&*store, &next.key).await, &next);
            if step == 5 {
                return;
            }
            holder = next;
        }
    }
    panic!("nobody passes a lease on within {NEXT_TTL:?}");
}

/// Release by the holder when the successor's time is over: the key is free, without a successor.
pub async fn release_frees_behind_a_lapsed_successor(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, late) = lapsed(&*store, "lapsed").await;
    let before = existing(&*store, &holder.key).await;
    assert_eq!(one(&*store, holder.release()).await, FREED);
    let after = existing(&*store, &holder.key).await;
    let expected = changed(before, |it| {
        it.reentrant_count = 0;
        it.next = None;
        it.now = after.now;
    });
    assert_eq!(after, expected);
    assert_eq!(changes_nothing(&*other, late.release()).await, Outcome::Lost);
    granted(&*other, late.acquire(LONG)).await;
}

/// Each state of a row in one batch of acquires, one of extends and one of releases.
pub async fn batches_pass_on_free_and_withdraw(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (passes, next) = queued(&*store, "passes on").await;
    let (frees, late) = lapsed(&*store, "frees").await;
    let (waited_for, leaves) = queued(&*store, "withdraws").await;
    let (stays, replaced) = queued(&*store, "stays").await;
    let (again, before) = queued(&*store, "again").await;
    let (lost, gone) = (Asker::new("lost"), Asker::new("gone"));
    granted(&*store, gone.acquire(LONG)).await;
    one(&*store, gone.release()).await;
    let first = Asker::new("stays");

    let acquires = [
        Asker::new("fresh").queue(Duration::ZERO),
        first.queue(2 * LONG),
        Asker::new("passes on").queue(Duration::ZERO),
        before.queue(Duration::ZERO),
        Asker::new("withdraws").acquire_wanting(LONG),
        gone.queue(Duration::ZERO),
    ];
    let answers = batch(&*other, &acquires).await;
    assert!(
        matches!(
            &answers[..],
            [
                Outcome::Granted { .. },
                Outcome::Queued { holder: second, .. },
                Outcome::Busy(third),
                // Nothing is written, so `Busy` is right too.
                Outcome::Queued { holder: fourth, .. } | Outcome::Busy(fourth),
                Outcome::Busy(fifth),
                Outcome::Lost,
            ] if stays.is(second) && passes.is(third) && again.is(fourth) && waited_for.is(fifth)
        ),
        "{answers:?}"
    );
    let mut rows_before = Vec::new();
    for asker in [&passes, &again, &waited_for] {
        rows_before.push(existing(&*store, &asker.key).await);
    }
    let releases = [
        leaves.release(),
        passes.release(),
        late.release(),
        lost.release(),
        replaced.release(),
        again.release(),
        gone.release(),
    ];
    let repeated = Outcome::Released(Released::Before);
    let answers = batch(&*other, &releases).await;
    let expected = [
        Outcome::Withdrawn,
        PASSED_ON,
        Outcome::Withdrawn,
        Outcome::Lost,
        Outcome::Lost,
        PASSED_ON,
        repeated,
    ];
    assert_eq!(answers, expected);
    assert_passed_on(&rows_before[0], &existing(&*store, &passes.key).await, &next);
    assert_passed_on(&rows_before[1], &existing(&*store, &again.key).await, &before);
    let row = existing(&*store, &waited_for.key).await;
    let expected = changed(rows_before.remove(2), |it| {
        it.next = None;
        it.now = row.now;
    });
    assert_eq!(row, expected);

    let releases = [
        frees.release(),
        stays.release(),
        passes.release(),
        waited_for.release(),
    ];
    let answers = batch(&*other, &releases).await;
    assert_eq!(answers, [FREED, PASSED_ON, Outcome::Lost, FREED]);
    let row = existing(&*store, &stays.key).await;
    assert_eq!((row.lease_id, row.next), (first.lease_id, None));
}
