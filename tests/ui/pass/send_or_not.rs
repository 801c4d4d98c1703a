use std::cell::Cell;
use std::rc::Rc;

use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError, send};

#[distributed_lock(key = "{order.id}:{order.shelf():>4}", wait = "1s")]
pub async fn sendable(order: &Order, text: String) -> Result<String, OrderError> {
    tokio::task::yield_now().await;
    Ok(text + &order.region)
}

#[distributed_lock(key = "{id}")]
pub async fn not_sendable(id: Rc<u64>) -> Result<u64, OrderError> {
    let cell = Cell::new(1);
    tokio::task::yield_now().await;
    Ok(*id + cell.get())
}

pub fn both(order: &Order) {
    drop(send(sendable(order, String::new())));
    drop(not_sendable(Rc::new(1)));
}
