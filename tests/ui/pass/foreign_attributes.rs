//! An attribute of another crate may have the name of one of ours.

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

mod other {
    pub(super) use tokio::main as run_once;
}

// If it were ours, it would miss its arguments.
#[distributed_lock(key = "order:{id}")]
#[other::run_once]
pub async fn blocks(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

pub fn is_synchronous() -> Result<u64, OrderError> {
    blocks(1)
}
