//! The fence check, in a transaction of the user's.

use dblock::open::sqlite;
use dblock::store::StoreErrorKind;

use crate::{File, TTL, acquire, assert_error, execute, granted, one, release};

#[tokio::test]
async fn a_savepoint_that_is_rolled_back_keeps_everybody_out() {
    let file = File::migrated().await;
    let (store, mut user) = (file.store(), file.user().await);
    let lease = acquire("k", TTL);
    let token = granted(&*store, &lease).await;
    execute(&mut user, "BEGIN; SAVEPOINT before_the_check").await;
    let left = sqlite::verify(&mut user, &*store, &lease.key, lease.lease_id, token).await;
    assert!(left.unwrap().is_some());
    execute(&mut user, "ROLLBACK TO before_the_check").await;
    assert_error(one(&*store, &release(&lease)).await, StoreErrorKind::Conflict, "");
    execute(&mut user, "COMMIT").await;
    one(&*store, &release(&lease)).await.unwrap();
}
