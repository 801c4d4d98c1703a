use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
async fn sell(id: u64, name: String, notes: Vec<String>) -> Result<u64, StockError> {
    drop(name);
    let count = notes.len() as u64;
    Ok(id + count)
}

fn main() {
    drop(sell(1, String::new(), Vec::new()));
}
