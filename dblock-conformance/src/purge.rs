//! Purge: deletes rows that nobody has used for long enough, and no others; tokens grow all the same. A store
//! that drops such rows by itself does nothing.

use std::time::Duration;

use dblock_core::store::{Outcome, Purged, Store};
use dblock_core::{InspectFilter, Key};

use super::AnyFixture;
use super::context::{
    Asker, BRIEF, LONG, ROUNDS, SHORT, existing, granted, granted_briefly, key, one, row, until,
};

/// Purges the whole table, a few rows at a step. Returns how many rows were deleted.
async fn purge_all(store: &dyn Store, idle: Duration) -> u64 {
    let mut rows = 0;
    let mut after: Option<Key> = None;
    loop {
        let step = store.purge(idle, after.as_ref(), 2).await.expect("purge works");
        assert!(step.rows <= 2, "{step:?} of two rows");
        rows += step.rows;
        let Some(next) = step.next else { return rows };
        assert!(Some(&next) > after.as_ref(), "{next:?} after {after:?}");
        after = Some(next);
    }
}

/// Takes and releases keys, and waits until their leases would have ended.
async fn leave(store: &dyn Store, askers: &mut [Asker]) {
    for asker in &mut *askers {
        granted_briefly(store, asker, SHORT, 0).await;
        one(store, asker.release()).await;
    }
    for asker in askers {
        until_idle(store, &asker.key).await;
    }
}

/// The same with a key that a caller waits for.
async fn leave_wanted(store: &dyn Store, name: &str) {
    for _ in 0..ROUNDS {
        let (mut wanted, waiter) = (Asker::new(name), Asker::new(name));
        granted_briefly(store, &mut wanted, BRIEF, 0).await;
        match one(store, waiter.acquire_wanting(LONG)).await {
            Outcome::Busy(_) => {
                one(store, wanted.release()).await;
                return until_idle(store, &wanted.key).await;
            }
            // Too late.
            Outcome::Granted { .. } => drop(one(store, waiter.release()).await),
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody waits for a lease of {BRIEF:?}");
}

async fn until_idle(store: &dyn Store, key: &Key) {
    until(store, key, "the lease's end to pass", |row| {
        row.now > row.expire_at
    })
    .await;
}

async fn keys(store: &dyn Store) -> Vec<String> {
    let filter = InspectFilter::new().include_free();
    let rows = store.inspect(&filter).await.expect("inspect reads rows");
    rows.iter().map(|row| row.key.as_str().to_owned()).collect()
}

/// In a store that drops unused rows by itself a purge finds nothing to do.
async fn does_nothing(store: &dyn Store) {
    let mut former = Asker::new("released");
    leave(store, std::slice::from_mut(&mut former)).await;
    for after in [None, Some(key("a"))] {
        let step = store.purge(Duration::ZERO, after.as_ref(), 2).await;
        assert_eq!(step.expect("it has nothing to do"), Purged::default());
    }
    if store.capabilities().former_leases {
        // The row still names its last lease.
        assert_eq!(one(store, former.acquire(LONG)).await, Outcome::Lost);
    }
}

/// A purge spares rows that are held, were held until just now, are wanted, or have a ceiling above the
/// clock. It deletes all others.
pub async fn purge_takes_only_idle_rows(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    if !store.capabilities().purge {
        return does_nothing(&*store).await;
    }
    granted(&*store, Asker::new("held").acquire(LONG)).await;

    leave_wanted(&*store, "wanted").await;

    // Its free tokens reach far beyond the clock.
    let mut ahead = Asker::new("ahead");
    granted_briefly(&*store, &mut ahead, SHORT, u32::MAX).await;
    one(&*store, ahead.release()).await;
    until_idle(&*store, &ahead.key).await;

    let mut dead = Asker::new("dead");
    granted_briefly(&*store, &mut dead, SHORT, 0).await;
    until_idle(&*store, &dead.key).await;
    leave(&*store, &mut ["a", "idle", "z"].map(Asker::new)).await;

    let recent = Asker::new("recent");
    granted(&*store, recent.acquire(LONG)).await;
    one(&*store, recent.release()).await;

    assert_eq!(
        purge_all(&*other, LONG).await,
        0,
        "nothing has been idle for that long"
    );
    purge_all(&*other, Duration::ZERO).await;
    assert_eq!(keys(&*store).await, ["ahead", "held", "recent", "wanted"]);
    assert!(existing(&*store, &key("held")).await.is_held());
    assert_eq!(purge_all(&*other, Duration::ZERO).await, 0, "and it is done");
}

/// A step reads no more rows than its limit, after the given key, and says where to go on.
pub async fn purge_goes_in_steps(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !store.capabilities().purge {
        return does_nothing(&*store).await;
    }
    leave(&*store, &mut ["a", "b", "c", "d"].map(Asker::new)).await;
    granted(&*store, Asker::new("c").acquire(LONG)).await;
    let behind = key("a");
    let step = store
        .purge(Duration::ZERO, Some(&behind), 2)
        .await
        .expect("purge works");
    assert_eq!(
        (step.rows, step.next),
        (1, Some(key("c"))),
        "it looked at b and c"
    );
    assert_eq!(keys(&*store).await, ["a", "c", "d"]);
    let step = store
        .purge(Duration::ZERO, Some(&key("c")), 10)
        .await
        .expect("purge works");
    assert_eq!((step.rows, step.next), (1, None), "d was the last one");
    assert_eq!(keys(&*store).await, ["a", "c"]);
}

/// The first token after a purge is larger than the last before, and late requests find no row.
pub async fn tokens_grow_over_a_purge(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !store.capabilities().purge {
        return does_nothing(&*store).await;
    }
    let mut last = 0;
    for _ in 0..3 {
        let mut former = Asker::new("purged");
        let token = granted_briefly(&*store, &mut former, SHORT, 100)
            .await
            .fence_token;
        assert!(token > last, "token {token} after {last}");
        last = token + 100;
        one(&*store, former.release()).await;
        until(&*store, &former.key, "the row to be idle", |row| {
            row.now > row.expire_at && row.now.as_micros() > row.fence_ceiling
        })
        .await;
        purge_all(&*store, Duration::ZERO).await;
        assert_eq!(row(&*store, &former.key).await, None);
        assert_eq!(one(&*store, former.extend(1, LONG)).await, Outcome::Lost);
        assert_eq!(one(&*store, former.release()).await, Outcome::Lost);
        assert_eq!(row(&*store, &former.key).await, None);
    }
}
