use dblock::run_once;
use dblock_ui_tests::OrderError;

pub struct Receipt(u64);

#[run_once(key = "pay:{id}", remember = "24h", on_crash = "stop")]
async fn pay(id: u64) -> Result<Receipt, OrderError> {
    Ok(Receipt(id))
}

fn main() {}
