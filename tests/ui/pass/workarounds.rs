//! What the documentation of the attribute writes where it cannot see a type.

use std::convert::Infallible;

use async_trait::async_trait;
use dblock::distributed_lock;
use dblock_ui_tests::OrderError;

// Instead of `-> !`.
#[distributed_lock(key = "worker")]
pub async fn never_returns() -> Result<Infallible, OrderError> {
    loop {
        tokio::task::yield_now().await;
    }
}

#[async_trait]
pub trait Bytes {
    async fn bytes(&self) -> Result<&[u8], OrderError>;
}

#[async_trait]
impl Bytes for Vec<u8> {
    #[distributed_lock(key = "bytes", on_busy = Ok(&[] as &[u8]))]
    async fn bytes(&self) -> Result<&[u8], OrderError> {
        Ok(self)
    }
}

#[distributed_lock(key = "outer")]
#[distributed_lock(key = "inner", on_busy = Ok(&[] as &[u8]))]
pub async fn lower(bytes: &[u8]) -> Result<&[u8], OrderError> {
    Ok(bytes)
}

// Alone it needs none.
#[distributed_lock(key = "bytes", on_busy = Ok(&[]))]
pub async fn alone(bytes: &[u8]) -> Result<&[u8], OrderError> {
    Ok(bytes)
}
