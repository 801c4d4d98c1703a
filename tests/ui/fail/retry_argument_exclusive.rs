use dblock::optimistic_retry;
use dblock_ui_tests::StockError;

#[optimistic_retry]
async fn sell(sold: &mut Vec<u64>, id: u64) -> Result<(), StockError> {
    sold.push(id);
    Ok(())
}

fn main() {
    drop(sell(&mut Vec::new(), 1));
}
