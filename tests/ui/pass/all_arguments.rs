use dblock::{LockManager, distributed_lock};
use dblock_ui_tests::OrderError;

pub struct Service {
    locks: LockManager,
}

impl Service {
    #[distributed_lock(
        key = "order:{id}",
        ttl = "1m 30s",
        wait = "500ms",
        manager = self.locks,
        renew = true,
        max_hold = "10 minutes",
        hold_min = "1s",
        on_lost = "cancel",
        on_busy = Ok(0),
        on_error = |error| Err(error.into()),
        crate = ::dblock,
    )]
    pub async fn settle(&self, id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }

    #[distributed_lock(key = "order:{id}", renew = false, wait = "forever", on_lost = "signal")]
    pub async fn others(&self, id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }

    #[distributed_lock(key = "catalog", shared, wait = "5s", max_hold = "1m")]
    pub async fn beside_others(&self, id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }

    #[distributed_lock(key = "provider", limit = 8, on_busy = Ok(0))]
    pub async fn a_few(&self, id: u64) -> Result<u64, OrderError> {
        Ok(id)
    }
}
