use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
fn sell(id: u64) -> Result<u64, StockError> {
    Ok(id)
}

fn main() {
    let _ = sell(1);
}
