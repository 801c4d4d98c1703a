use dblock::run_once;
use dblock_ui_tests::OrderError;

pub struct Withdrawal {
    id: u64,
}

#[run_once(key = "pay:{order.id}", remember = "24h", on_crash = "stop", fingerprint = order)]
async fn pay(order: &Withdrawal) -> Result<u64, OrderError> {
    Ok(order.id)
}

fn main() {}
