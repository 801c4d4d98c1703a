use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a:{id}")]
fn settle(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

fn main() {
    let _ = settle(1);
}
