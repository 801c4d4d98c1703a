use dblock::optimistic_retry;
use dblock_ui_tests::OrderError;

#[optimistic_retry]
async fn settle(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

fn main() {
    drop(settle(1));
}
