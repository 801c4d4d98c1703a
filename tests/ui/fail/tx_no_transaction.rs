use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "order:{id}", tx = id)]
async fn number(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order", tx = name)]
async fn text(name: &str) -> Result<(), OrderError> {
    drop(name);
    Ok(())
}

#[distributed_lock(key = "order", tx = pair)]
async fn tuple(pair: (u8, u8)) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order", tx = order)]
async fn structure(order: Order) -> Result<Order, OrderError> {
    Ok(order)
}

#[distributed_lock(key = "order", tx = any)]
async fn generic<T: Send>(any: T) -> Result<T, OrderError> {
    Ok(any)
}

fn main() {
    let _ = (number, text, tuple, structure, generic::<u8>);
}
