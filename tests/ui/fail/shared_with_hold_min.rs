use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "catalog", shared, hold_min = "1m")]
async fn price(item: u64) -> Result<u64, OrderError> {
    Ok(item)
}

#[distributed_lock(key = "provider", hold_min = "1m", limit = 8)]
async fn charge(cents: i64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    // One mistake is one error: the functions are still there.
    drop((price(1), charge(1)));
}
