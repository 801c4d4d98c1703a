use std::sync::Mutex;
use std::time::Duration;

use dblock::distributed_lock;
use dblock_ui_tests::{OrderError, send};

pub struct Service {
    ttl: Mutex<Duration>,
    renew: bool,
}

const WAIT: Duration = Duration::from_millis(20);

const LIMIT: u32 = 8;

impl Service {
    // The guard of the mutex must not live across the await.
    #[distributed_lock(
        key = "all",
        ttl = *self.ttl.lock().expect("not poisoned"),
        wait = WAIT,
        renew = self.renew,
        max_hold = hold * 2,
        hold_min = hold,
    )]
    pub async fn settle(&self, hold: Duration) -> Result<(), OrderError> {
        Ok(())
    }

    #[distributed_lock(key = "provider", limit = if self.renew { LIMIT } else { more.into() })]
    pub async fn charge(&self, more: u16) -> Result<(), OrderError> {
        Ok(())
    }
}

pub fn is_send(service: &Service) {
    drop(send(service.settle(WAIT)));
    drop(send(service.charge(9)));
}
