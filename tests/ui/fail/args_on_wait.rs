use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a", on_wait = |_| ())]
async fn settle(order_id: u64, name: &str) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    // One mistake is one error: the function is still there.
    drop(settle(1, "a"));
}
