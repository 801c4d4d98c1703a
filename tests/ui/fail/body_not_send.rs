use std::rc::Rc;

use dblock::distributed_lock;
use dblock_ui_tests::{OrderError, send};

#[distributed_lock(key = "a")]
async fn settle() -> Result<u64, OrderError> {
    let number = Rc::new(1);
    tokio::task::yield_now().await;
    Ok(*number)
}

fn main() {
    drop(send(settle()));
}
