//! Successors: the lease that a held row names as next.

use std::time::Duration;

use dblock_core::LockRow;
use dblock_core::store::{HandedOver, Holder, NEXT_TTL, Outcome, QUEUE_AHEAD, Released, Store, Successor};

use super::AnyFixture;
use super::context::{
    Asker, BRIEF, LONG, ROUNDS, SHORT, SPARE, assert_about, assert_told, changed, changes_nothing, existing,
    force_release, granted, granted_briefly, one, revoke, until, until_not_held,
};

/// Whether the store has successors, by a clock of its own; `clockless` checks the others. A store without
/// successors answers a request for that with `Busy`, and a release frees the key.
pub(super) async fn queues(fixture: &dyn AnyFixture) -> bool {
    let store = fixture.store().await;
    let can = store.capabilities();
    if can.queues {
        return can.clock;
    }
    let (holder, waiter) = (Asker::new("no queue"), Asker::new("no queue"));
    granted(&*store, holder.acquire(LONG)).await;
    for _ in 0..2 {
        let named = busy_behind(one(&*store, waiter.queue(LONG)).await);
        assert!(holder.is(&named), "{named:?} instead of {holder:?}");
        assert_eq!(existing(&*store, &holder.key).await.next, None);
    }
    assert_eq!(one(&*store, waiter.release()).await, Outcome::Lost);
    assert_eq!(
        one(&*store, holder.release()).await,
        Outcome::Released(Released::Freed)
    );
    assert_eq!(existing(&*store, &holder.key).await.reentrant_count, 0);
    false
}

/// The content of an answer that makes its lease the successor.
#[track_caller]
pub(super) fn queued_behind(outcome: Outcome) -> (Holder, Duration) {
    match outcome {
        Outcome::Queued {
            holder: named,
            next_ttl,
            ..
        } => (named, next_ttl),
        other => panic!("{other:?} instead of Queued"),
    }
}

/// The holder in the answer to a successor that asks again. If nothing is written, `Busy` is right too.
#[track_caller]
fn still_behind(outcome: Outcome) -> Holder {
    match outcome {
        Outcome::Queued {
            holder: named,
            next_ttl,
            ..
        } => {
            assert_eq!(next_ttl, NEXT_TTL);
            named
        }
        other => busy_behind(other),
    }
}

#[track_caller]
pub(super) fn busy_behind(outcome: Outcome) -> Holder {
    match outcome {
        Outcome::Busy(named) => named,
        other => panic!("{other:?} instead of Busy"),
    }
}

pub(super) fn next_of(row: &LockRow) -> &Successor {
    row.next.as_ref().expect("the row names a successor")
}

/// The holder of a key and its successor.
pub(super) async fn queued(store: &dyn Store, name: &str) -> (Asker, Asker) {
    let holder = Asker::with_holder(name, "host/1 the holder");
    let next = Asker::with_holder(name, "host/2 the successor");
    granted(store, holder.acquire_with_spare(LONG, 2 * SPARE)).await;
    queued_behind(one(store, next.queue(Duration::ZERO)).await);
    (holder, next)
}

/// The same with a lapsed successor. Another caller has waited for long.
pub(super) async fn lapsed(store: &dyn Store, name: &str) -> (Asker, Asker) {
    let (holder, next) = (Asker::new(name), Asker::new(name));
    granted(store, holder.acquire(LONG)).await;
    one(store, next.queue_for(Duration::ZERO, SHORT)).await;
    one(store, Asker::new(name).acquire_wanting(LONG)).await;
    until(store, &next.key, "the successor to lapse", |row| {
        next_of(row).until <= row.now
    })
    .await;
    (holder, next)
}

/// The same with an expired holder and a live successor.
async fn queued_behind_the_dead(store: &dyn Store, name: &str) -> (Asker, Asker) {
    for _ in 0..ROUNDS {
        let (mut holder, next) = (Asker::new(name), Asker::new(name));
        granted_briefly(store, &mut holder, BRIEF, 0).await;
        match one(store, next.queue(Duration::ZERO)).await {
            Outcome::Queued { .. } => {
                until_not_held(store, &holder.key).await;
                return (holder, next);
            }
            // Too late.
            Outcome::Granted { .. } => drop(one(store, next.release()).await),
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody waits behind a lease of {BRIEF:?}");
}

/// Acquire with `queue` of a row that another lease holds: the row names the request as its successor. A release
/// passes on no more than [`NEXT_TTL`] of its ttl.
pub async fn busy_acquire_becomes_the_successor(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let waited = Duration::from_mins(7);
    for ttl in [Duration::from_secs(2), NEXT_TTL, LONG] {
        let name = format!("next for {ttl:?}");
        let (holder, next) = (
            Asker::new(&name),
            Asker::with_holder(&name, "host/2 the successor"),
        );
        granted(&*store, holder.acquire(LONG)).await;
        let before = existing(&*store, &holder.key).await;
        let ask = next.acquire_with(ttl, |ask| {
            ask.wanted_for = Some(LONG);
            ask.queue = Some(waited);
            ask.spare_tokens = SPARE;
        });
        let (named, next_ttl) = queued_behind(one(&*other, ask).await);
        assert!(holder.is(&named), "{named:?} instead of {holder:?}");
        assert_eq!(named.fence_token, before.fence_token);
        assert_told(&*other, &named, LONG);
        assert_eq!(next_ttl, ttl.min(NEXT_TTL));

        let after = existing(&*store, &holder.key).await;
        let written = next_of(&after);
        let asked_at = written.until - LONG;
        assert!(asked_at >= before.now && asked_at <= after.now, "{after:?}");
        let expected = Successor {
            lease_id: next.lease_id,
            owner: next.owner,
            holder: next.holder.clone(),
            ttl: next_ttl,
            spare_tokens: SPARE,
            since: asked_at - waited,
            until: asked_at + LONG,
            limit: None,
        };
        assert_eq!(*written, expected);
        assert!(after.wanted_until > after.now, "a successor waits, too");
        let holders_part = changed(after, |it| {
            it.wanted_until = before.wanted_until;
            it.next = None;
            it.now = before.now;
        });
        assert_eq!(holders_part, before);
    }
}

/// Acquire without `queue`, or without a time to queue for: busy, and the row names no successor.
pub async fn busy_acquire_without_queue_is_no_successor(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let (holder, waiter) = (Asker::new("plain"), Asker::new("plain"));
    granted(&*store, holder.acquire(LONG)).await;
    let timeless = waiter.acquire_with(LONG, |ask| ask.queue = Some(LONG));
    busy_behind(changes_nothing(&*store, timeless).await);
    busy_behind(one(&*store, waiter.acquire_wanting(LONG)).await);
    assert_eq!(existing(&*store, &holder.key).await.next, None);
}

/// The successor asks again, with `queue` and without: it never loses waiting time, and its time as the
/// successor never gets shorter.
pub async fn successor_that_asks_again_keeps_its_place(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, next) = queued(&*store, "again").await;
    let mut before = existing(&*store, &holder.key).await;
    for request in [
        next.queue(Duration::ZERO),
        next.queue(LONG),
        next.queue_for(LONG, 3 * LONG),
        next.acquire_wanting(LONG),
        next.acquire(LONG),
    ] {
        let named = still_behind(one(&*other, request).await);
        assert!(holder.is(&named), "{named:?}");
        let after = existing(&*store, &holder.key).await;
        let (was, is) = (next_of(&before), next_of(&after));
        assert_eq!((is.lease_id, is.owner), (next.lease_id, next.owner));
        assert!(
            is.since <= was.since && is.until >= was.until,
            "{is:?} after {was:?}"
        );
        before = after;
    }
    let longer = next_of(&before).until.since(before.now);
    assert_about(longer, 3 * LONG);
}

/// A lease that has waited less, as long, or less than [`QUEUE_AHEAD`] longer: busy, with the same successor.
pub async fn successor_stays_before_who_came_at_about_the_same_time(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, next) = (Asker::new("fair"), Asker::new("fair"));
    granted(&*store, holder.acquire(LONG)).await;
    queued_behind(one(&*store, next.queue(LONG)).await);
    let before = existing(&*store, &holder.key).await;
    for waited in [Duration::ZERO, LONG, LONG + QUEUE_AHEAD / 2] {
        let third = Asker::new("fair");
        let named = busy_behind(one(&*other, third.queue(waited)).await);
        assert!(holder.is(&named), "{named:?}");
        assert_eq!(existing(&*store, &holder.key).await.next, before.next);
    }
}

/// A lease that has waited [`QUEUE_AHEAD`] longer becomes the successor. The former one is told that the key is
/// busy.
pub async fn successor_that_came_later_is_replaced(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, late) = queued(&*store, "fair").await;
    let early = Asker::new("fair");
    let (named, _) = queued_behind(one(&*other, early.queue(QUEUE_AHEAD + LONG)).await);
    assert!(holder.is(&named), "{named:?}");
    let replaced = existing(&*store, &holder.key).await;
    assert_eq!(next_of(&replaced).lease_id, early.lease_id);
    for request in [late.queue(Duration::ZERO), late.acquire(LONG)] {
        busy_behind(one(&*store, request).await);
        assert_eq!(existing(&*store, &holder.key).await.next, replaced.next);
    }
    assert_eq!(changes_nothing(&*store, late.release()).await, Outcome::Lost);
}

/// A successor whose time is over is told that the key is busy, and anybody may become the successor.
pub async fn lapsed_successor_is_replaced_by_anybody(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, late) = lapsed(&*store, "lapsed").await;
    busy_behind(changes_nothing(&*store, late.acquire(LONG)).await);
    let third = Asker::new("lapsed");
    queued_behind(one(&*other, third.queue(Duration::ZERO)).await);
    let row = existing(&*store, &holder.key).await;
    assert_eq!(next_of(&row).lease_id, third.lease_id);

    let (holder, late) = lapsed(&*store, "lapsed and back").await;
    queued_behind(one(&*other, late.queue(Duration::ZERO)).await);
    let row = existing(&*store, &holder.key).await;
    assert!(next_of(&row).until > row.now);
}

/// Release by the successor, live or lapsed: withdrawn, and the holder's part of the row does not change. A
/// second release is lost, and the holder's own release frees the key.
pub async fn successor_withdraws(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    for (holder, next) in [
        queued(&*store, "live").await,
        lapsed(&*store, "lapsed").await,
        queued_behind_the_dead(&*store, "expired").await,
    ] {
        let before = existing(&*store, &holder.key).await;
        assert_eq!(one(&*other, next.release()).await, Outcome::Withdrawn);
        let after = existing(&*store, &holder.key).await;
        let expected = changed(before, |it| {
            it.next = None;
            it.now = after.now;
        });
        assert_eq!(after, expected);
        assert_eq!(changes_nothing(&*other, next.release()).await, Outcome::Lost);
        let released = one(&*store, holder.release()).await;
        match released {
            Outcome::Released(Released::Freed) => {}
            Outcome::Lost if !after.is_held() => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Extends and revokes change the holder's part of the row and not the successor's.
pub async fn extend_and_revoke_leave_the_successor(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, next) = queued(&*store, "kept").await;
    let before = existing(&*store, &holder.key).await;
    let to = HandedOver::new(
        Asker::new("kept").owner,
        "host/1 the next caller",
        before.fence_token + 1,
    );
    for request in [
        holder.extend(2, 2 * LONG),
        holder.hand_over(1, LONG, &to),
        holder.acquire(LONG),
    ] {
        one(&*store, request).await;
        assert_eq!(existing(&*store, &holder.key).await.next, before.next);
    }
    assert!(revoke(&*other, &holder.key).await);
    assert_eq!(existing(&*store, &holder.key).await.next, before.next);
    // A local hand-over changes whom the successor waits for.
    let named = still_behind(one(&*other, next.acquire(LONG)).await);
    assert_eq!((named.owner, named.fence_token), (to.owner, to.fence_token));
}

/// Anybody may take an expired row, which then has no successor.
pub async fn takeover_clears_the_successor(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    for by_successor in [false, true] {
        let (holder, next) = queued_behind_the_dead(&*store, "dead").await;
        let taker = if by_successor { &next } else { &Asker::new("dead") };
        let grant = granted(&*other, taker.queue(Duration::ZERO)).await;
        let former = grant.taken_over.expect("the former holder is named");
        assert!(holder.is(&former), "{former:?}");
        let row = existing(&*store, &holder.key).await;
        assert_eq!((row.lease_id, row.next), (taker.lease_id, None));
        one(&*store, taker.release()).await;
    }
}

/// Force-release frees the key, without a successor.
pub async fn force_release_clears_the_successor(fixture: &dyn AnyFixture) {
    if !queues(fixture).await {
        return;
    }
    let (store, other) = (fixture.store().await, fixture.store().await);
    let (holder, next) = queued(&*store, "forced").await;
    assert!(force_release(&*other, &holder.key).await);
    let row = existing(&*store, &holder.key).await;
    assert_eq!((row.reentrant_count, row.next), (0, None));
    assert_eq!(changes_nothing(&*store, next.release()).await, Outcome::Lost);
    granted(&*other, Asker::new("forced").acquire(LONG)).await;
    busy_behind(one(&*store, next.acquire(LONG)).await);
}
