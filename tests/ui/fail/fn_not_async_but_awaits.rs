use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a:{id}")]
pub fn settle(id: u64) -> Result<u64, OrderError> {
    std::future::ready(()).await;
    Ok(id)
}

pub async fn caller() -> Result<u64, OrderError> {
    settle(1).await
}

fn main() {}
