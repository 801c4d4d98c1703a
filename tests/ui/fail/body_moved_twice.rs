use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a:{name}")]
async fn settle(name: String) -> Result<(), OrderError> {
    drop(name);
    drop(name);
    Ok(())
}

#[distributed_lock(key = "a:{name}", on_busy = Err(OrderError::Unknown(name.len() as u64)))]
async fn moved_before_on_busy(name: String) -> Result<(), OrderError> {
    drop(name);
    Ok(())
}

fn main() {}
