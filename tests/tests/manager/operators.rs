//! An operator sees what the database has.

use dblock::InspectFilter;
use dblock_tests::{Backend, on_every_store};

use crate::long;

on_every_store!(inspect_shows_what_the_rows_have);

async fn inspect_shows_what_the_rows_have(backend: Backend) {
    let (locks, operator) = (backend.manager().await, backend.manager().await);
    let guard = locks
        .lock("key")
        .options(&long().function("shop::settle"))
        .acquire()
        .await
        .unwrap();
    let rows = operator.admin().list(InspectFilter::new()).await.unwrap();
    let [shown] = rows.as_slice() else {
        panic!("{rows:?}")
    };
    let row = backend.the_row("key").await;
    assert!(shown.is_held());
    assert_eq!(
        (shown.key.as_str(), shown.owner, shown.reentrant_count),
        ("key", guard.owner(), 1)
    );
    assert_eq!(
        (shown.lease_id, shown.fence_token),
        (row.lease_id, guard.fence_token())
    );
    assert_eq!(
        (shown.expire_at.as_micros(), shown.acquired_at.as_micros()),
        (row.expire_at, row.acquired_at)
    );
    assert!(shown.holder.ends_with(" shop::settle"), "{}", shown.holder);
    assert!(
        shown.holder.contains(&format!("/{} ", std::process::id())),
        "{}",
        shown.holder
    );
    assert_eq!(shown.holder, row.holder);
    guard.release().await.unwrap();
    assert_eq!(operator.admin().list(InspectFilter::new()).await.unwrap(), []);
    let free = operator
        .admin()
        .list(InspectFilter::new().include_free())
        .await
        .unwrap();
    assert!(
        matches!(free.as_slice(), [row] if !row.is_held() && row.reentrant_count == 0),
        "{free:?}"
    );
}
