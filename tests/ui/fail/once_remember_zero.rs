use dblock::run_once;
use dblock_ui_tests::OrderError;

#[run_once(key = "pay:{id}", remember = "0s", on_crash = "stop")]
async fn pay(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

fn main() {}
