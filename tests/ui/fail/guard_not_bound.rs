#![deny(unused_must_use)]

use dblock::{LockError, LockManager, LockOptions};

async fn settle(locks: &LockManager) -> Result<(), LockError> {
    locks.acquire("a", LockOptions::new()).await?;
    Ok(())
}

fn main() {
    let _ = settle;
}
