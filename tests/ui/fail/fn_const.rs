use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
const async fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
