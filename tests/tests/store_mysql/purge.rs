//! Deleting idle rows.

use std::time::Duration;

use dblock::InspectFilter;
use dblock::store::Store;

use crate::place::Place;
use crate::{acquire, run};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test]
async fn a_row_that_somebody_has_locked_stays_and_holds_the_others_not_back() {
    let Some(place) = Place::migrated().await else {
        return;
    };
    let store = place.store();
    for answer in store.apply(&["a", "b", "c"].map(acquire)).await {
        answer.unwrap();
    }
    place
        .run(&format!(
            "UPDATE {} SET expire_at = 1, fence_ceiling = 1",
            place.table
        ))
        .await;
    let mut user = place.connection().await;
    let lock = format!(
        "BEGIN; SELECT 1 FROM {} WHERE lock_key = 'b' FOR UPDATE",
        place.table
    );
    run(&mut user, &lock).await;
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 2);
    let left = store.inspect(&InspectFilter::new().include_free()).await.unwrap();
    assert!(matches!(&left[..], [row] if row.key.as_str() == "b"), "{left:?}");
    run(&mut user, "COMMIT").await;
    assert_eq!(store.purge(DAY, None, 10).await.unwrap().rows, 1);
}
