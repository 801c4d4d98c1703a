use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "provider", limit = "8")]
async fn charge(cents: i64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "provider", limit = 0.5)]
async fn refund(cents: i64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    // One mistake is one error: the functions are still there.
    drop((charge(1), refund(1)));
}
