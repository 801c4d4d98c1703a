use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "{order.id}:{name}")]
pub async fn moves(order: Order, name: String) -> Result<(), OrderError> {
    drop(name);
    drop(order);
    Ok(())
}

#[distributed_lock(key = "{order.id}")]
pub async fn moves_a_field(order: Order) -> Result<String, OrderError> {
    Ok(order.region)
}

#[distributed_lock(key = "{order.id}")]
pub async fn moves_into_a_closure(order: Order) -> Result<impl FnOnce() -> u64, OrderError> {
    Ok(move || order.id)
}

#[distributed_lock(key = "{count}")]
pub async fn mutable(mut count: u64, list: &mut Vec<u64>) -> Result<u64, OrderError> {
    count += 1;
    list.push(count);
    Ok(count)
}
