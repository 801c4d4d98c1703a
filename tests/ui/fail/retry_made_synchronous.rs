use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[tokio::main]
#[optimistic_retry]
async fn main() -> Result<(), StockError> {
    Ok(())
}
