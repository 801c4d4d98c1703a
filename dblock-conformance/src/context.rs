//! What the checks share: callers that send requests, and the reading of rows. Public for dblock's own checks.

use std::future::Future;
use std::time::Duration;

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{
    Acquire, Action, Extend, HandedOver, Holder, Outcome, Request, Store, StoreError, StoreFuture,
};
use dblock_core::{InspectFilter, Key, LockRow};
use uuid::Uuid;

use crate::TIMEOUT;

/// A ttl that does not end during a check.
pub(super) const LONG: Duration = Duration::from_mins(5);

/// A ttl that a check waits for.
pub(super) const SHORT: Duration = Duration::from_millis(60);

/// A ttl within which a check does something first. A machine may stall for longer: then the check tries again,
/// [`ROUNDS`] times at most.
pub(super) const BRIEF: Duration = Duration::from_millis(500);

/// How often a check tries what may come too late.
pub const ROUNDS: usize = 20;

/// How many tokens a successor asks to keep free.
pub(super) const SPARE: u32 = 50;

/// By how much two readings of the clock within one check may differ.
pub(super) const SLACK: Duration = Duration::from_mins(1);

pub fn key(key: &str) -> Key {
    Key::new(None, key).expect("the suite's keys are valid")
}

/// A caller that asks for a key.
#[derive(Debug, Clone)]
pub struct Asker {
    pub(super) key: Key,
    pub(super) lease_id: Uuid,
    pub(super) owner: Uuid,
    pub(super) holder: String,
}

impl Asker {
    pub(super) fn new(name: &str) -> Self {
        Self::with_holder(name, "host/1 conformance::check")
    }

    pub fn with_holder(name: &str, holder: &str) -> Self {
        Self {
            key: key(name),
            lease_id: Uuid::now_v7(),
            owner: Uuid::now_v7(),
            holder: holder.into(),
        }
    }

    pub(super) fn acquire(&self, ttl: Duration) -> Request {
        self.acquire_with(ttl, |_| ())
    }

    pub(super) fn acquire_wanting(&self, wanted_for: Duration) -> Request {
        self.acquire_with(LONG, |ask| ask.wanted_for = Some(wanted_for))
    }

    /// Keeps `spare_tokens` free for local hand-overs.
    pub(super) fn acquire_with_spare(&self, ttl: Duration, spare_tokens: u32) -> Request {
        self.acquire_with(ttl, |ask| ask.spare_tokens = spare_tokens)
    }

    /// Asks to be the successor for [`LONG`], having `waited`.
    pub(super) fn queue(&self, waited: Duration) -> Request {
        self.queue_for(waited, LONG)
    }

    pub(super) fn queue_for(&self, waited: Duration, wanted_for: Duration) -> Request {
        self.acquire_with(LONG, |ask| {
            ask.wanted_for = Some(wanted_for);
            ask.queue = Some(waited);
            ask.spare_tokens = SPARE;
        })
    }

    pub(super) fn acquire_with(&self, ttl: Duration, change: impl FnOnce(&mut Acquire)) -> Request {
        let mut ask = Acquire::new(self.owner, ttl, self.holder.as_str());
        change(&mut ask);
        self.request(Action::Acquire(ask))
    }

    pub(super) fn extend(&self, count: u32, ttl: Duration) -> Request {
        self.request(Action::Extend(Extend::new(count, ttl)))
    }

    pub(super) fn hand_over(&self, count: u32, ttl: Duration, to: &HandedOver) -> Request {
        let mut ask = Extend::new(count, ttl);
        ask.handed_over = Some(to.clone());
        self.request(Action::Extend(ask))
    }

    pub(super) fn release(&self) -> Request {
        self.request(Action::Release)
    }

    fn request(&self, action: Action) -> Request {
        Request::new(self.key.clone(), self.lease_id, action)
    }

    /// Whether `holder` is this asker.
    pub(super) fn is(&self, holder: &Holder) -> bool {
        holder.owner == self.owner && holder.name == self.holder
    }
}

/// The outcomes of a batch. Repeats requests that were skipped or undone because of others.
pub(super) async fn batch(store: &dyn Store, requests: &[Request]) -> Vec<Outcome> {
    let mut outcomes: Vec<Option<Outcome>> = vec![None; requests.len()];
    within("the store to carry out a batch", async {
        while outcomes.iter().any(Option::is_none) {
            let open: Vec<usize> = (0..requests.len())
                .filter(|&index| outcomes[index].is_none())
                .collect();
            let asked: Vec<Request> = open.iter().map(|&index| requests[index].clone()).collect();
            let answers = store.apply(&asked).await;
            assert_eq!(answers.len(), asked.len(), "one answer for each request");
            for (index, answer) in open.into_iter().zip(answers) {
                match answer {
                    Ok(Outcome::Skipped) => {}
                    Ok(outcome) => outcomes[index] = Some(outcome),
                    Err(error) if error.is_retryable() && !error.is_outcome_unknown() => {}
                    Err(error) => panic!("{:?} failed: {error} ({error:?})", requests[index]),
                }
            }
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}

/// The outcome of one request.
pub(super) async fn one(store: &dyn Store, request: Request) -> Outcome {
    batch(store, &[request]).await.remove(0)
}

/// Takes a lock that nobody holds.
pub(super) async fn granted(store: &dyn Store, request: Request) -> Grant {
    Grant::of(&request.clone(), one(store, request).await)
}

/// Takes a lock that nobody holds, for a ttl that may soon be over. If the lease ends before the store's last
/// round trip, the store cannot tell whether it was granted: then a longer lease is tried.
pub async fn granted_briefly(store: &dyn Store, asker: &mut Asker, ttl: Duration, spare: u32) -> Grant {
    let mut longer = ttl;
    for _ in 0..ROUNDS {
        let request = asker.acquire_with_spare(longer, spare);
        match store.apply(std::slice::from_ref(&request)).await.remove(0) {
            Ok(Outcome::Skipped) => {}
            // The lease before has not ended yet.
            Ok(Outcome::Busy(_)) => tokio::time::sleep(longer.min(BRIEF) / 4).await,
            Ok(outcome) => return Grant::of(&request, outcome),
            Err(error) if error.is_retryable() => longer *= 2,
            Err(error) => panic!("{request:?} failed: {error} ({error:?})"),
        }
        asker.lease_id = Uuid::now_v7();
    }
    panic!("nobody gets a lease of {ttl:?} in {ROUNDS} tries");
}

/// The content of [`Outcome::Granted`].
#[derive(Debug)]
pub struct Grant {
    pub(super) fence_token: i64,
    pub(super) remaining: Duration,
    pub(super) taken_over: Option<Holder>,
    pub(super) wanted: bool,
}

impl Grant {
    pub(super) fn of(request: &Request, outcome: Outcome) -> Self {
        match outcome {
            Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
                ..
            } => Self {
                fence_token,
                remaining,
                taken_over,
                wanted,
            },
            other => panic!("{request:?} was answered with {other:?} instead of Granted"),
        }
    }
}

/// Repeats a call that was not carried out: on a machine that stalls, connecting may take too long.
pub(super) async fn retry<'a, T>(ask: impl Fn() -> StoreFuture<'a, Result<T, StoreError>>) -> T {
    for _ in 0..ROUNDS {
        match ask().await {
            Err(error) if error.is_retryable() && !error.is_outcome_unknown() => {}
            answer => return answer.expect("the store answers"),
        }
    }
    panic!("the store could not be asked {ROUNDS} times in a row");
}

pub(super) async fn revoke(store: &dyn Store, key: &Key) -> bool {
    retry(|| store.revoke(key)).await
}

pub(super) async fn force_release(store: &dyn Store, key: &Key) -> bool {
    retry(|| store.force_release(key)).await
}

/// When a lease ends in a store that cannot tell.
const UNKNOWN_END: Timestamp = Timestamp::from_micros(i64::MAX);

/// The row of a key, without the end of its lease if the store has no clock and only estimates it.
pub(super) async fn row(store: &dyn Store, key: &Key) -> Option<LockRow> {
    let filter = InspectFilter::new()
        .prefix(key.as_str())
        .include_free()
        .limit(u32::MAX);
    let rows = retry(|| store.inspect(&filter)).await;
    let mut row = rows.into_iter().find(|row| row.key == *key)?;
    let can = store.capabilities();
    assert!(can.former_leases || row.is_held(), "nobody holds {row:?}");
    if !can.clock {
        row.expire_at = UNKNOWN_END;
    }
    Some(row)
}

/// The row of a key that has had a lease: a free one where rows do not outlive their leases.
pub async fn existing(store: &dyn Store, key: &Key) -> LockRow {
    match row(store, key).await {
        Some(row) => row,
        None if !store.capabilities().former_leases => LockRow::new(key.clone(), Timestamp::from_micros(1)),
        None => panic!("there is no row for {key:?}"),
    }
}

/// An acquire with a lease that is over: lost, and nothing changes. A store that has forgotten the lease may
/// grant a new one.
pub(super) async fn assert_over(store: &dyn Store, former: &Asker, fence_token: i64) {
    if store.capabilities().former_leases {
        assert_eq!(changes_nothing(store, former.acquire(LONG)).await, Outcome::Lost);
        return;
    }
    match one(store, former.acquire(LONG)).await {
        Outcome::Lost => {}
        Outcome::Granted { fence_token: new, .. } => assert!(new > fence_token, "{new} after {fence_token}"),
        other => panic!("{other:?}"),
    }
}

/// The former holder, if the store's rows outlive their leases.
pub(super) fn former_holder(store: &dyn Store, grant: &Grant) -> Option<Holder> {
    let told = grant.taken_over.clone();
    assert_eq!(told.is_some(), store.capabilities().former_leases, "{told:?}");
    told
}

/// The row with some columns changed, to compare with.
pub(super) fn changed(mut row: LockRow, change: impl FnOnce(&mut LockRow)) -> LockRow {
    change(&mut row);
    row
}

/// Carries out `request` and sees that the row does not change.
pub(super) async fn changes_nothing(store: &dyn Store, request: Request) -> Outcome {
    let key = request.key.clone();
    let before = row(store, &key).await;
    let outcome = one(store, request).await;
    let now = before.as_ref().map_or(Timestamp::EPOCH, |row| row.now);
    let after = row(store, &key).await.map(|row| changed(row, |it| it.now = now));
    assert_eq!(after, before, "the row changed");
    outcome
}

/// Waits until nobody holds `key`.
pub(super) async fn until_not_held(store: &dyn Store, key: &Key) {
    until(store, key, &format!("the lease of {key:?} to end"), |row| {
        !row.is_held()
    })
    .await;
}

/// Waits until the row of `key` is as `wished`.
pub async fn until(store: &dyn Store, key: &Key, what: &str, wished: impl Fn(&LockRow) -> bool) -> LockRow {
    let mut last = None;
    let waiting = async {
        loop {
            let row = existing(store, key).await;
            if wished(&row) {
                return row;
            }
            last = Some(row);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(TIMEOUT, waiting).await;
    in_time.unwrap_or_else(|_| panic!("waited {TIMEOUT:?} for {what}; last seen: {last:?}"))
}

/// Bounds a wait.
pub(super) async fn within<T>(what: &str, wait: impl Future<Output = T>) -> T {
    let ended = tokio::time::timeout(TIMEOUT, wait).await;
    ended.unwrap_or_else(|_| panic!("waited {TIMEOUT:?} for {what}"))
}

/// Sees that a time left is `ttl`, less what the check has taken so far.
#[track_caller]
pub(super) fn assert_about(remaining: Duration, ttl: Duration) {
    let fits = remaining <= ttl + Duration::from_millis(10) && remaining + SLACK >= ttl;
    assert!(fits, "{remaining:?} are left of {ttl:?}");
}

/// Sees that `ttl` is left of a lease, by its row. See [`assert_about`].
#[track_caller]
pub(super) fn assert_left(row: &LockRow, ttl: Duration) {
    if row.expire_at != UNKNOWN_END {
        assert_about(left(row), ttl);
    }
}

/// Sees that `holder` names the time left, about `ttl`, or none where the store has no clock.
#[track_caller]
pub(super) fn assert_told(store: &dyn Store, holder: &Holder, ttl: Duration) {
    match holder.remaining {
        Some(remaining) => assert_about(remaining, ttl),
        None => assert!(!store.capabilities().clock, "{holder:?}"),
    }
}

/// A time left, from columns.
pub(super) fn left(row: &LockRow) -> Duration {
    row.expire_at.since(row.now)
}
