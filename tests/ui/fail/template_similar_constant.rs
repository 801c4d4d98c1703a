use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

const REGION: &str = "eu";

#[distributed_lock(key = "order:{REGIO}")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = (settle, REGION);
}
