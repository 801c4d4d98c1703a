use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "provider", limit = 0)]
async fn charge(cents: i64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    // One mistake is one error: the function is still there.
    drop(charge(1));
}
