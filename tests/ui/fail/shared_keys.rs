use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(keys = ["catalog", "item:{item}"], shared)]
async fn price(item: u64) -> Result<u64, OrderError> {
    Ok(item)
}

#[distributed_lock(keys = ["catalog", "item:{item}"], limit = 8)]
async fn change(item: u64) -> Result<u64, OrderError> {
    Ok(item)
}

fn main() {
    // One mistake is one error: the functions are still there.
    drop((price(1), change(1)));
}
