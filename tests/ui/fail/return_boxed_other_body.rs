use std::future::Future;
use std::pin::Pin;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

async fn inner(id: u64) -> Result<u64, OrderError> {
    Ok(id)
}

#[distributed_lock(key = "order:{id}")]
fn settle(id: u64) -> BoxFuture<'static, Result<u64, OrderError>> {
    Box::pin(inner(id))
}

fn main() {
    let _ = settle;
}
