use std::sync::Arc;

use async_trait::async_trait;
use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::{Order, OrderError, send};

pub struct Path<T>(pub T);

#[async_trait]
pub trait Settle: Send + Sync {
    async fn by_reference(&self, order: &Order) -> Result<u64, OrderError>;
    async fn by_mutable_reference(&mut self, order: Order) -> Result<u64, OrderError>;
    async fn by_arc(self: Arc<Self>, path: Path<u64>) -> Result<u64, OrderError>;
    async fn pairs(&self, pair: (u64, String)) -> Result<String, OrderError>;
    async fn skip(&self, id: u64);
    async fn only_key(&self, name: String) -> Result<(), OrderError>;
    async fn changed(&self, id: u64, name: String) -> Result<String, OrderError>;

    #[distributed_lock(key = "order:{order.id}")]
    async fn by_default(&self, order: &Order) -> Result<u64, OrderError> {
        self.by_reference(order).await
    }
}

pub struct Service {
    locks: LockManager,
    last: u64,
}

#[async_trait]
impl Settle for Service {
    #[distributed_lock(key = "order:{order.id}:{self.last}", manager = self.locks)]
    async fn by_reference(&self, order: &Order) -> Result<u64, OrderError> {
        if order.id == 0 {
            return Err(OrderError::Unknown(0));
        }
        Ok(order.id + self.last)
    }

    #[distributed_lock(key = "order:{order.id}:{self.last}", manager = self.locks)]
    async fn by_mutable_reference(&mut self, mut order: Order) -> Result<u64, OrderError> {
        order.id += 1;
        self.last = order.id;
        Ok(self.last)
    }

    #[distributed_lock(key = "order:{id}", manager = self.locks)]
    async fn by_arc(self: Arc<Self>, Path(id): Path<u64>) -> Result<u64, OrderError> {
        Ok(id + self.last)
    }

    #[distributed_lock(key = "order:{id}:{name}")]
    async fn pairs(&self, (id, mut name): (u64, String)) -> Result<String, OrderError> {
        name.push_str(&id.to_string());
        Ok(name)
    }

    #[distributed_lock(key = "order:{id}", on_error = |_| ())]
    async fn skip(&self, id: u64) {}

    #[distributed_lock(key = "order:{name}", on_busy = { drop(name); Ok(()) })]
    async fn only_key(&self, name: String) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "order:{id}:{name}")]
    async fn changed(&self, id: u64, mut name: String) -> Result<String, OrderError> {
        name.push('!');
        Ok(name)
    }
}

pub fn is_send(service: &Service, order: &Order) {
    drop(send(service.by_reference(order)));
}
