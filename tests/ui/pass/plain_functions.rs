use std::fmt::Display;

use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::{Order, OrderError};

pub struct Shop {
    locks: LockManager,
    sold: Vec<u64>,
}

#[distributed_lock(key = "order:{id}")]
pub fn settle(id: u64) -> Result<u64, OrderError> {
    if id == 0 {
        return Err(OrderError::Unknown(id));
    }
    Ok(id)
}

#[distributed_lock(key = "order:{name}", wait = "5s", ttl = "1m")]
pub fn moved(name: String) -> Result<String, OrderError> {
    Ok(name)
}

#[distributed_lock(keys = ["order:{one}", "order:{two}"])]
pub fn several(one: u64, two: u64) -> Result<u64, OrderError> {
    let _ = settle(one + two)?;
    Ok(one)
}

#[distributed_lock(key = "a")]
#[distributed_lock(key = "b", on_busy = Ok(None))]
pub fn stacked() -> Result<Option<u64>, OrderError> {
    Ok(Some(1))
}

#[distributed_lock(key = "catalog", shared, on_error = |_| 0)]
pub fn without_result(mut count: u64) -> u64 {
    count += 1;
    count
}

#[distributed_lock(key = "order:{value}", limit = 3)]
pub fn generic<T: Display + Send>(value: &T) -> Result<impl Display + use<T>, OrderError> {
    Ok(value.to_string())
}

impl Shop {
    #[distributed_lock(key = "order:{order.id}", manager = self.locks)]
    pub fn sell(&mut self, order: &Order) -> Result<(), OrderError> {
        self.sold.push(order.id);
        Ok(())
    }
}

#[distributed_lock(key = "order:{id}")]
pub fn blocks(id: u64, runtime: &tokio::runtime::Runtime) -> Result<u64, OrderError> {
    runtime.block_on(async { std::future::ready(Ok(id)).await })
}

pub trait Sells {
    #[distributed_lock(key = "order:{id}")]
    fn sell(&self, id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }
}
