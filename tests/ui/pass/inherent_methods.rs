use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::OrderError;

pub struct Service {
    locks: LockManager,
    tenant: String,
}

impl Service {
    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_reference(&self) -> Result<usize, OrderError> {
        Ok(self.tenant.len())
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_mutable_reference(&mut self) -> Result<(), OrderError> {
        self.tenant.clear();
        Ok(())
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_value(self) -> Result<String, OrderError> {
        Ok(self.tenant)
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_mutable_value(mut self) -> Result<Self, OrderError> {
        self.tenant.clear();
        Ok(self)
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_arc(self: Arc<Self>) -> Result<Arc<Self>, OrderError> {
        Ok(self)
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_rc_reference(self: &Rc<Self>) -> Result<usize, OrderError> {
        Ok(Rc::strong_count(self))
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_box(self: Box<Self>) -> Result<String, OrderError> {
        Ok(self.tenant)
    }

    #[distributed_lock(key = "{self.tenant}", manager = self.locks)]
    pub async fn by_pin(self: Pin<&mut Self>) -> Result<usize, OrderError> {
        Ok(self.tenant.len())
    }

    #[distributed_lock(key = "all")]
    pub async fn associated() -> Result<(), OrderError> {
        Ok(())
    }
}
