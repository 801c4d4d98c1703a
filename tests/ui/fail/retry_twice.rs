use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry(times = 5)]
#[optimistic_retry(within = "2s")]
async fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id)
}

fn main() {
    drop(sell(1));
}
