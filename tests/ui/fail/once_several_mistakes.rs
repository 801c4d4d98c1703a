use dblock::run_once;
use dblock_ui_tests::OrderError;

#[run_once(key = "pay:{id}", remember = "24", hold_min = "1m", max_attempts = 0)]
async fn pay(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

fn main() {}
