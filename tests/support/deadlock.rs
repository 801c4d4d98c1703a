//! Two calls that hold a key each and wait for that of the other.

use std::sync::Arc;
use std::time::Duration;

use dblock::{LockError, LockManager};
use tokio::sync::Barrier;
use tokio::task::JoinHandle;

/// A call that holds one key and waits for another.
pub type Waiting = JoinHandle<Result<Result<(), LockError>, LockError>>;

/// One holds `a` and waits for `b`, the other the other way round. They wait for a minute at most.
pub fn deadlock(one: LockManager, two: LockManager) -> [Waiting; 2] {
    let both_hold = Arc::new(Barrier::new(2));
    let spawn = |locks: LockManager, own: &'static str, other: &'static str| {
        let both_hold = Arc::clone(&both_hold);
        tokio::spawn(async move {
            let waits = async {
                both_hold.wait().await;
                let wait = Duration::from_mins(1);
                locks.lock(other).wait(wait).run(async {}).await
            };
            locks.lock(own).run(waits).await
        })
    };
    [spawn(one, "a", "b"), spawn(two, "b", "a")]
}
