use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "account:{name}", on_busy = Err(OrderError::Unknown(name.len() as u64)))]
async fn close(name: String) -> Result<(), OrderError> {
    drop(name);
    Ok(())
}

fn main() {}
