use std::borrow::Cow;
use std::sync::Arc;

use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

const NIGHTLY: &str = "nightly";

#[distributed_lock(key = NIGHTLY)]
pub async fn constant() -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = format!("order:{}", order.id))]
pub async fn formatted(order: Order) -> Result<Order, OrderError> {
    Ok(order)
}

#[distributed_lock(key = concat!("a", "b"))]
pub async fn macro_call() -> Result<(), OrderError> {
    Ok(())
}

// An argument that is the key is not moved away from the body.
#[distributed_lock(key = name)]
pub async fn argument(name: String) -> Result<String, OrderError> {
    Ok(name)
}

#[distributed_lock(key = String::from("order:") + &name)]
pub async fn sum(name: String) -> Result<String, OrderError> {
    Ok(name)
}

#[distributed_lock(key = if name.is_empty() { "none" } else { &*name })]
pub async fn branches(name: Arc<str>) -> Result<Arc<str>, OrderError> {
    Ok(name)
}

#[distributed_lock(key = name)]
pub async fn cow(name: Cow<'static, str>) -> Result<Cow<'static, str>, OrderError> {
    Ok(name)
}
