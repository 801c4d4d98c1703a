use dblock::run_once;
use dblock_ui_tests::OrderError;

#[run_once(key = "pay:{id}", remember = "24h", on_crash = "stpo")]
async fn pay(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

fn main() {}
