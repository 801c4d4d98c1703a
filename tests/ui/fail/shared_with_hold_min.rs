use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "catalog", shared, hold_min = "1m")]
async fn price(item: u64) -> Result<u64, OrderError> {
    Ok(item)
}

fn main() {
    // One mistake is one error: the function is still there.
    drop(price(1));
}
