use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "a:{order.id}")]
async fn settle(order: Order) -> Result<u64, OrderError> {
    let number = order.
}

fn main() {}
