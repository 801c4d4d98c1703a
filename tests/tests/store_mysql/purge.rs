//! Deleting idle rows.

use std::time::Duration;

use dblock::store::{MySqlStore, Purged, Store};
use dblock::{InspectFilter, Key};

use crate::place::Place;
use crate::{acquire, key, one, release, run, token};

const DAY: Duration = Duration::from_hours(24);

/// Takes and frees each key.
async fn used(store: &MySqlStore, names: &[&str]) {
    for name in names {
        let request = acquire(name);
        token(&one(store, request.clone()).await);
        one(store, release(&request)).await;
    }
}

impl Place {
    /// Moves everything in a row into the past, as if it had been used that much earlier.
    async fn age(&self, condition: &str, by: Duration) {
        let (table, by) = (&self.table, by.as_micros());
        self.run(&format!(
            "UPDATE {table} SET expire_at = expire_at - {by}, wanted_until = wanted_until - {by}, \
             fence_token = fence_token - {by}, fence_ceiling = fence_ceiling - {by} WHERE {condition}"
        ))
        .await;
    }
}

async fn keys(store: &MySqlStore) -> Vec<String> {
    let all = InspectFilter::new().include_free();
    let rows = store.inspect(&all).await.unwrap();
    rows.iter().map(|row| row.key.as_str().to_owned()).collect()
}

async fn step(store: &MySqlStore, after: Option<&Key>, limit: u32) -> Purged {
    store.purge(DAY, after, limit).await.unwrap()
}

#[tokio::test]
async fn only_rows_idle_for_long_enough_are_deleted_in_steps_of_the_given_size() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    assert_eq!(step(&store, None, 2).await, Purged::default());
    used(&store, &["a", "b", "c", "d", "e", "f"]).await;
    // As long as the ttl of the test's leases: exactly a day after the lease's end is not over yet.
    place.age("lock_key <> 'b'", DAY).await;
    place.age("lock_key <> 'b' AND lock_key <> 'f'", DAY).await;
    for (name, column) in [("c", "wanted_until"), ("d", "fence_ceiling")] {
        let now = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
        place
            .run(&format!(
                "UPDATE {} SET {column} = {now} - 86300000000 WHERE lock_key = '{name}'",
                place.table
            ))
            .await;
    }
    let first = Purged::new(1, Some(key("b")));
    assert_eq!(step(&store, None, 2).await, first);
    let second = Purged::new(0, Some(key("d")));
    assert_eq!(step(&store, Some(&key("b")), 2).await, second);
    let third = Purged::new(1, Some(key("f")));
    assert_eq!(step(&store, Some(&key("d")), 2).await, third);
    assert_eq!(step(&store, Some(&key("f")), 2).await, Purged::default());
    assert_eq!(keys(&store).await, ["b", "c", "d", "f"]);
}

#[tokio::test]
async fn a_purged_key_has_a_larger_token_afterwards() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    let request = acquire("k");
    let before = token(&one(&store, request.clone()).await);
    one(&store, release(&request)).await;
    place.age("TRUE", DAY * 2).await;
    assert_eq!(step(&store, None, 10).await.rows, 1);
    assert!(token(&one(&store, acquire("k")).await) > before);
}

#[tokio::test]
async fn a_row_that_somebody_has_locked_stays_and_holds_the_others_not_back() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    used(&store, &["a", "b", "c"]).await;
    place.age("TRUE", DAY * 2).await;
    let mut user = place.connection().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM {} WHERE lock_key = 'b' FOR UPDATE",
        place.table
    );
    run(&mut user, &lock).await;
    assert_eq!(step(&store, None, 10).await.rows, 2);
    assert_eq!(keys(&store).await, ["b"]);
    run(&mut user, "COMMIT").await;
    assert_eq!(step(&store, None, 10).await.rows, 1);
}
