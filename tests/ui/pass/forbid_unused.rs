//! Where no lint of this group may be allowed.

#![forbid(unused, unused_imports, unused_mut, unused_variables)]

use dblock::{distributed_lock, optimistic_retry, run_once};
use dblock_ui_tests::{OrderError, StockError};

#[distributed_lock(key = "order:{id}")]
#[run_once(key = "order:{id}", remember = "1h", on_crash = "stop")]
pub async fn once(id: u64) -> Result<u64, OrderError> {
    Ok(1)
}

#[distributed_lock(key = "order:{id}")]
#[optimistic_retry(times = 3)]
pub async fn again(id: u64) -> Result<u64, StockError> {
    Ok(1)
}
