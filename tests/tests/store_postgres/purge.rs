//! A purge takes rows that nobody has used for long, in the order of their keys, and disturbs nobody.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{Outcome, Purged, Store};
use sqlx::{AssertSqlSafe, Connection};

use crate::bench::{Bench, acquire, ask, ask_of, key, release, token};

const DAY: Duration = Duration::from_hours(24);

/// Longer than a statement takes from the clock to the row: what is purged sooner has no token to beat. A manager
/// asks for a day at least.
const SHORT: Duration = Duration::from_millis(100);

async fn keys(store: &impl Store) -> Vec<String> {
    let rows = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    rows.into_iter().map(|row| row.key.to_string()).collect()
}

/// Everything in the row that may still be of use keeps it.
#[tokio::test]
async fn what_was_used_within_the_idle_time_stays() {
    let Some(bench) = Bench::new("purge_idle").await else {
        return;
    };
    let store = bench.store();
    let names = ["ceiling", "crashed", "expiry", "free", "wanted"];
    for name in names {
        let request = acquire(name);
        token(&ask(&store, &request).await);
        if name != "crashed" {
            ask(&store, &release(&request)).await;
        }
    }
    assert_eq!(store.purge(DAY, None, 10).await.unwrap(), Purged::new(0, None));
    let two_days = 2 * 86_400_000_000_i64;
    bench
        .run(&format!(
            "UPDATE {{t}} SET expire_at = expire_at - {two_days}, fence_ceiling = fence_ceiling - {two_days};
             UPDATE {{t}} SET expire_at = expire_at + {two_days} WHERE lock_key = 'expiry';
             UPDATE {{t}} SET fence_ceiling = fence_ceiling + {two_days} WHERE lock_key = 'ceiling';
             UPDATE {{t}} SET wanted_until = acquired_at WHERE lock_key = 'wanted'"
        ))
        .await;
    assert_eq!(store.purge(3 * DAY, None, 10).await.unwrap().rows, 0);
    assert_eq!(store.purge(DAY, None, 10).await.unwrap(), Purged::new(2, None));
    assert_eq!(keys(&store).await, ["ceiling", "expiry", "wanted"]);
    // A purged key starts anew, and a late request of its former lease finds nothing.
    token(&ask(&store, &acquire("free")).await);
}

/// Each step looks at no more than its share, and says where the next one begins.
#[tokio::test]
async fn steps_go_through_the_keys_in_order() {
    let Some(bench) = Bench::new("purge_steps").await else {
        return;
    };
    let store = bench.store();
    let requests: Vec<_> = ["a", "b", "c", "d", "e", "é"].map(acquire).into();
    for answer in store.apply(&requests).await {
        token(&answer.unwrap());
    }
    bench
        .run("UPDATE {t} SET expire_at = 0, fence_ceiling = 0 WHERE lock_key NOT IN ('a', 'd')")
        .await;
    let mut steps = Vec::new();
    let mut after = None;
    loop {
        let step = store.purge(DAY, after.as_ref(), 2).await.unwrap();
        let done = step.next.is_none();
        after.clone_from(&step.next);
        steps.push(step);
        if done {
            break;
        }
    }
    let step = |rows, next: Option<&str>| Purged::new(rows, next.map(key));
    assert_eq!(
        steps,
        [
            step(1, Some("b")),
            step(1, Some("d")),
            step(2, Some("é")),
            step(0, None)
        ]
    );
    assert_eq!(keys(&store).await, ["a", "d"]);
}

/// A row that a user's transaction has locked is left for another time, not waited for.
#[tokio::test]
async fn a_locked_row_is_left_out() {
    let Some(bench) = Bench::new("purge_locked").await else {
        return;
    };
    let store = bench.store();
    for name in ["a", "b"] {
        token(&ask(&store, &acquire(name)).await);
    }
    bench.run("UPDATE {t} SET expire_at = 0, fence_ceiling = 0").await;
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let lock = format!("SELECT FROM {} WHERE lock_key = 'a' FOR SHARE", bench.table);
    sqlx::query(AssertSqlSafe(lock))
        .execute(&mut *transaction)
        .await
        .unwrap();
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 1);
    assert_eq!(keys(&store).await, ["a"]);
    transaction.rollback().await.unwrap();
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 1);
}

/// Rows come and go under acquires that race: no token is given twice, and each one's next is larger.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_across_purges() {
    let Some(bench) = Bench::new("purge_race").await else {
        return;
    };
    let bench = Arc::new(bench);
    let stop = Arc::new(AtomicBool::new(false));
    let purged = Arc::new(AtomicU64::new(0));
    let task = tokio::spawn({
        let (store, stop, purged) = (bench.store(), Arc::clone(&stop), Arc::clone(&purged));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let rows = store.purge(SHORT, None, 10).await.unwrap().rows;
                purged.fetch_add(rows, Ordering::Relaxed);
            }
        }
    });
    let racers: Vec<_> = (0..2)
        .map(|racer| {
            let (store, purged) = (bench.store(), Arc::clone(&purged));
            tokio::spawn(async move {
                let mut tokens: Vec<i64> = Vec::new();
                while tokens.len() < 25 || purged.load(Ordering::Relaxed) <= 10 {
                    let mut request = acquire("hot");
                    ask_of(&mut request).ttl = Duration::from_micros(200);
                    let mut batch = vec![request];
                    // One of the racers uses the multi-row statement.
                    batch.extend((racer == 1).then(|| acquire("cold")));
                    let answer = store.apply(&batch).await.swap_remove(0).unwrap();
                    if let Outcome::Granted { fence_token, .. } = answer {
                        assert!(tokens.last().is_none_or(|last| *last < fence_token));
                        tokens.push(fence_token);
                        // The racers must not stay in step, or one keeps the row in use for the other.
                        tokio::time::sleep(SHORT + SHORT.mul_f64(2.0 * fastrand::f64())).await;
                    }
                }
                tokens
            })
        })
        .collect();
    let mut seen = HashSet::new();
    for racer in racers {
        for fence_token in racer.await.unwrap() {
            assert!(seen.insert(fence_token), "a token was given twice");
        }
    }
    stop.store(true, Ordering::Relaxed);
    task.await.unwrap();
}
