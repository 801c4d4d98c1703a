use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "a")]
async fn tail(name: String) -> Result<u64, OrderError> {
    Ok(name)
}

#[distributed_lock(key = "a")]
async fn early(name: String) -> Result<u64, OrderError> {
    if name.is_empty() {
        return Ok(name);
    }
    Ok(1)
}

#[distributed_lock(key = "a")]
async fn no_value() -> Result<u64, OrderError> {
    std::future::ready(1).await;
}

#[distributed_lock(key = "a")]
async fn inside() -> Result<u64, OrderError> {
    let number: u64 = String::new();
    Ok(number)
}

fn main() {}
