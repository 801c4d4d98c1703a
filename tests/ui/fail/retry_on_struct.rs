use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
struct Stock {
    left: u64,
}

fn main() {
    let _ = StockError::SoldOut;
}
