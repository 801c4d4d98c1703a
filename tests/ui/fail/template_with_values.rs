use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order:{}", id)]
async fn settle(id: u64) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order:{}:{:?}", id, name, wait = "5s")]
async fn two(id: u64, name: &str) -> Result<(), OrderError> {
    Ok(())
}

#[distributed_lock(key = "order:{:04}", &pair.0)]
async fn field(pair: (u64, u8)) -> Result<(), OrderError> {
    Ok(())
}

fn main() {
    let _ = (settle, two, field);
}
