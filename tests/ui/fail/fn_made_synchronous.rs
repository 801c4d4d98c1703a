use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[tokio::main]
#[distributed_lock(key = "nightly")]
async fn main() -> Result<(), OrderError> {
    Ok(())
}
