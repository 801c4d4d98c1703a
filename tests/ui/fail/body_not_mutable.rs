use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
async fn settle(count: u64) -> Result<u64, OrderError> {
    count += 1;
    Ok(count)
}

fn main() {}
