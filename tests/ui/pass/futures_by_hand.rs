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

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

#[distributed_lock(key = "order:{id}")]
pub fn alias(id: &u64) -> BoxFuture<'_, Result<u64, OrderError>> {
    Box::pin(async move { Ok(*id) })
}

trait FutureExt: Future + Sized + Send {
    fn boxed<'a>(self) -> BoxFuture<'a, Self::Output>
    where
        Self: 'a,
    {
        Box::pin(self)
    }
}

impl<F: Future + Send> FutureExt for F {}

#[distributed_lock(key = "order:{id}")]
pub fn boxed_by_method(id: &u64) -> BoxFuture<'_, Result<u64, OrderError>> {
    async move { Ok(*id) }.boxed()
}
