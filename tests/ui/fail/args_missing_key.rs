use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(ttl = "30s")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock]
async fn bare() -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
