use dblock::run_once;
use dblock_ui_tests::{Order, OrderError};

#[run_once(key = "pay", remember = "1h", on_crash = "retry")]
async fn name(order: &Order) -> Result<&str, OrderError> {
    Ok(&order.region)
}

#[run_once(key = "pay", remember = "1h", on_crash = "retry")]
async fn nested(order: &Order) -> Result<Option<(u64, &str)>, OrderError> {
    Ok(Some((1, &order.region)))
}

fn main() {
    let _ = (name, nested);
}
