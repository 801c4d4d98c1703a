use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
async fn sell(ref name: String) -> Result<u64, StockError> {
    consume(name);
    Ok(1)
}

fn consume(_: String) {}

fn main() {
    drop(sell(String::new()));
}
