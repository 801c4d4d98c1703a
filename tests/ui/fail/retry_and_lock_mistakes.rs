use dblock::{distributed_lock, optimistic_retry};
use dblock_ui_tests::StockError;

#[distributed_lock(key = "stock:{di}")]
#[optimistic_retry(times = 0)]
async fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id)
}

fn main() {
    drop(sell(1));
}
