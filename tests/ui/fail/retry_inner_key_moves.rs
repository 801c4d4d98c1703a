use dblock::{distributed_lock, optimistic_retry};
use dblock_ui_tests::StockError;

#[optimistic_retry]
#[distributed_lock(key = "stock:{name}")]
async fn sell(name: String) -> Result<(), StockError> {
    Ok(())
}

fn main() {
    drop(sell(String::new()));
}
