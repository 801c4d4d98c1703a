use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
async fn sell<T: ToString>(name: T) -> Result<String, StockError> {
    Ok(name.to_string())
}

fn main() {
    drop(sell("a"));
}
