use std::fmt::Display;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "{id}")]
pub async fn both(id: impl Display + Send, then: impl FnOnce(String) -> u64) -> Result<u64, OrderError> {
    Ok(then(id.to_string()))
}
