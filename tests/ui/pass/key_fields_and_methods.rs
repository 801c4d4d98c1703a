use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

pub struct Nested {
    pub pair: (u64, (Order, u8)),
}

#[distributed_lock(key = "{order.region}:{order.shelf()}:{nested.pair.0}:{nested.pair.1.0.id}:{text.trim().len()}")]
pub async fn settle(order: &Order, nested: Nested, text: &str) -> Result<u64, OrderError> {
    Ok(order.id + nested.pair.0 + u64::from(nested.pair.1.1) + text.len() as u64)
}
