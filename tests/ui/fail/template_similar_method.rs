use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "order:{order.shelff()}")]
async fn settle(order: &Order) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = settle;
}
