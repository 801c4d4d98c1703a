use std::fmt::Debug;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "{id}")]
pub async fn numbers(id: u64) -> Result<impl Iterator<Item = u64> + Debug, OrderError> {
    if id == 0 {
        return Ok(0..0);
    }
    Ok(0..id)
}

#[distributed_lock(key = "{id}", on_error = |_| 0)]
pub async fn bare(id: u64) -> impl Debug {
    id
}
