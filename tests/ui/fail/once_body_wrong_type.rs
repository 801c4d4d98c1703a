use dblock::run_once;
use dblock_ui_tests::OrderError;

#[run_once(key = "pay", remember = "1h", on_crash = "retry")]
async fn pay(id: u64) -> Result<u64, OrderError> {
    Ok("text")
}

fn main() {
    let _ = pay;
}
