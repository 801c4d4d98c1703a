#![deny(unused_must_use)]

use dblock::{LockError, LockManager};

async fn settle(locks: &LockManager) -> Result<(), LockError> {
    locks.lock("a").acquire().await?;
    Ok(())
}

fn main() {
    let _ = settle;
}
