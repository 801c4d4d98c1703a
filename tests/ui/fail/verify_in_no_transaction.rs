use dblock::{LockError, LockGuard};

/// Something that is no transaction, such as a pool.
struct Pool;

async fn settle(guard: &LockGuard, mut pool: Pool) -> Result<(), LockError> {
    guard.verify_in(&mut pool).await?;
    guard.verify_in(&pool).await
}

fn main() {
    let _ = settle;
}
