//! Deleting idle rows.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::{Purged, Request, StoreErrorKind};

use crate::{File, TTL, acquire, assert_error, execute, granted, one, release};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn a_purge_takes_what_nobody_has_used_for_long() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    for key in ["free", "expired", "held", "wanted", "ceiling", "young"] {
        let lease = acquire(key, TTL);
        granted(&*store, &lease).await;
        if key != "held" && key != "expired" {
            one(&*store, &release(&lease)).await.unwrap();
        }
    }
    // Used a little longer ago than a day, except in one respect.
    let age = |except: &str| {
        let columns = ["expire_at", "wanted_until", "fence_ceiling"];
        let old = "CAST(unixepoch('subsec') * 1000000 AS INTEGER) - 86400000000 - 1000000";
        let set: Vec<_> = columns
            .into_iter()
            .filter(|column| *column != except)
            .map(|column| format!("{column} = {old}"))
            .collect();
        format!("UPDATE distributed_lock SET {}", set.join(", "))
    };
    let ages = [
        format!("{} WHERE lock_key IN ('free', 'expired')", age("")),
        format!("{} WHERE lock_key = 'held'", age("expire_at")),
        // `wanted_until` is set by hand: nobody has asked for it.
        "UPDATE distributed_lock SET wanted_until = expire_at WHERE lock_key = 'wanted'".into(),
        format!("{} WHERE lock_key = 'wanted'", age("wanted_until")),
        format!("{} WHERE lock_key = 'ceiling'", age("fence_ceiling")),
    ];
    execute(&mut user, &ages.join(";")).await;

    let nothing = store.purge(DAY * 2, None, 100).await.unwrap();
    assert_eq!(nothing, Purged::default(), "nothing is two days old");
    let purged = store.purge(DAY, None, 100).await.unwrap();
    assert_eq!(purged, Purged::new(2, None));
    let left = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    let left: Vec<_> = left.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(left, ["ceiling", "held", "wanted", "young"]);
}

#[tokio::test]
async fn a_purge_goes_on_behind_the_last_key() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let leases: Vec<Request> = (0..10).map(|n| acquire(&format!("k{n}"), TTL)).collect();
    for answer in store.apply(&leases).await {
        answer.unwrap();
    }
    let old =
        "UPDATE distributed_lock SET expire_at = 1, fence_ceiling = 1 WHERE lock_key NOT IN ('k1', 'k9')";
    execute(&mut user, old).await;
    let (mut steps, mut after) = (Vec::new(), None);
    loop {
        let step = store.purge(DAY, after.as_ref(), 4).await.unwrap();
        steps.push((step.rows, step.next.as_ref().map(ToString::to_string)));
        match step.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(
        steps,
        [(3, Some("k3".to_owned())), (4, Some("k7".to_owned())), (1, None)]
    );
    assert_eq!(store.purge(DAY, None, 4).await.unwrap().rows, 0);
    assert_eq!(
        store
            .inspect(&InspectFilter::new().include_free())
            .await
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn a_purge_without_idle_rows_only_reads() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    granted(&*store, &acquire("k", TTL)).await;
    execute(&mut user, "BEGIN IMMEDIATE").await;
    assert_eq!(store.purge(DAY, None, 500).await.unwrap(), Purged::default());
    execute(
        &mut user,
        "UPDATE distributed_lock SET expire_at = 1, fence_ceiling = 1; COMMIT",
    )
    .await;
    execute(&mut user, "BEGIN IMMEDIATE").await;
    assert_error(
        store.purge(DAY, None, 500).await,
        StoreErrorKind::Conflict,
        "keep it short",
    );
    execute(&mut user, "COMMIT").await;
    assert_eq!(store.purge(DAY, None, 500).await.unwrap().rows, 1);
}
