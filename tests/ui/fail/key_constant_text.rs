use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "order:{id}".to_string())]
async fn settle(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = concat!("order:", "{order.id}"))]
async fn joined(order: &Order) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(keys = [String::from("order:{id}"), "a"])]
async fn several(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = ("order:{id}" as &str))]
async fn cast(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = &*"order:{id}")]
async fn dereferenced(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = std::borrow::Cow::Borrowed("order:{id}"))]
async fn cow(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = { let key = "order:{id}"; key.to_owned() })]
async fn local(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order:{oder_id}".to_owned())]
async fn misspelt(order_id: u64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = (settle, joined, several, cast, dereferenced, cow, local, misspelt);
}
