use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order", max_hold = "1s", hold_min = "2s")]
async fn settle() -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = settle;
}
