use locks::{LockError, distributed_lock};

#[distributed_lock(key = "report:{id}", ttl = "10s", on_busy = Ok(0))]
async fn renamed(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

fn main() {}
