use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order", crate = "dblock")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = settle;
}
