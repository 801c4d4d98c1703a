use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry(times)]
async fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id)
}

fn main() {
    // One mistake is one error: the function is still there.
    drop(sell(1));
}
