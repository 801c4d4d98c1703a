//! Deleting idle rows.

use std::time::Duration;

use dblock::store::{Purged, StoreErrorKind};

use crate::{File, TTL, acquire, assert_error, execute, granted};

const DAY: Duration = Duration::from_hours(24);

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
