use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "order:{order}")]
async fn settle(order: &Order) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order:{holder.order}:{holder.count}")]
async fn field(holder: Holder) -> Result<(), OrderError> {
    Ok(())
}

struct Holder {
    order: Order,
    count: u64,
}

fn main() {}
