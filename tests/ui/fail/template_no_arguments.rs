use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order:{order_id}")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
