use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a:{name}")]
async fn settle(name: String) -> Result<(), OrderError> {
    drop(name);
    drop(name);
    Ok(())
}

fn main() {}
