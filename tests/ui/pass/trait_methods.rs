#![allow(async_fn_in_trait)]
use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

pub trait Settle {
    fn tenant(&self) -> String;

    async fn settle(&self, order: &Order) -> Result<u64, OrderError>;

    #[distributed_lock(key = "{self.tenant()}/{order.id}")]
    async fn settle_by_default(&self, order: &Order) -> Result<u64, OrderError> {
        self.settle(order).await
    }
}

pub struct Service;

impl Settle for Service {
    fn tenant(&self) -> String {
        "a".into()
    }

    #[distributed_lock(key = "{self.tenant()}/{order.id}", wait = "1s")]
    async fn settle(&self, order: &Order) -> Result<u64, OrderError> {
        Ok(order.id)
    }
}
