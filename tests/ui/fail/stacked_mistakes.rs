use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "from:{form}")]
#[distributed_lock(key = "to:{to}", ttl = "5")]
#[distributed_lock(wait = "1s")]
async fn transfer(from: u64, to: u64) -> Result<(), OrderError> {
    Ok(())
}

fn main() {}
