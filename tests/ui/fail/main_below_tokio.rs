use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[tokio::main(flavor = "current_thread")]
#[distributed_lock(key = "nightly", wait = "1s")]
async fn main() -> Result<(), OrderError> {
    work().await?;
    Ok(())
}

async fn work() -> Result<(), OrderError> {
    Ok(())
}
