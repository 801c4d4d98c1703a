use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
async fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id.to_string())
}

fn main() {
    drop(sell(1));
}
