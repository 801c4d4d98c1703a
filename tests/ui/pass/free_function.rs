use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order:{id}")]
pub async fn settle(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}
