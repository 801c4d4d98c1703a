use dblock::distributed_lock;
use dblock_ui_tests::{Order, OrderError};

#[distributed_lock(key = "{order.id}")]
pub async fn named<'a>(order: &'a Order, other: &str) -> Result<&'a str, OrderError> {
    let _ = other;
    Ok(&order.region)
}

pub struct View<'a> {
    pub order: &'a Order,
}

impl<'a> View<'a> {
    #[distributed_lock(key = "{self.order.id}")]
    pub async fn elided(&self, _other: &mut [u8]) -> Result<&str, OrderError> {
        Ok(&self.order.region)
    }

    #[distributed_lock(key = "{self.order.id}")]
    pub async fn hidden(&self) -> Result<View<'_>, OrderError> {
        Ok(View { order: self.order })
    }

    #[distributed_lock(key = "{self.order.id}")]
    pub async fn outlives(self) -> Result<&'a Order, OrderError> {
        Ok(self.order)
    }
}
