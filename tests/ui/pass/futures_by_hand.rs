use std::future::Future;
use std::pin::Pin;

use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

#[distributed_lock(key = "order:{id}")]
pub fn boxed(id: u64) -> Pin<Box<dyn Future<Output = Result<u64, OrderError>> + Send>> {
    let twice = id * 2;
    Box::pin(async move { Ok(twice) })
}

#[distributed_lock(key = "order:{id}")]
#[allow(clippy::manual_async_fn)]
pub fn opaque(id: u64) -> impl Future<Output = Result<u64, OrderError>> + Send {
    async move { Ok(id) }
}
