//! rslock: Redlock over one Redis server, on one multiplexed connection.

use std::time::Duration;

use rslock::{LockGuard, LockManager};

use super::guarded::{Guarded, client};
use super::{Client, Subject, TTL, Use};

pub(super) const SETTINGS: &str = "one Redis server, one multiplexed connection (it has no other way); `acquire` and `release`; under \
     contention a retry delay of up to 2 ms instead of 200 ms";

pub(super) struct Redlock {
    manager: LockManager,
}

struct Task {
    manager: LockManager,
    key: String,
}

pub(super) fn open(url: &str, plan: Use) -> Redlock {
    let mut manager = LockManager::new(vec![url]);
    if plan.contended {
        manager.set_retry(u32::MAX, Duration::from_millis(2));
    }
    Redlock { manager }
}

impl Subject for Redlock {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            manager: self.manager.clone(),
            key: key.to_owned(),
        })
    }
}

impl Guarded for Task {
    type Guard = LockGuard;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        Ok(self.manager.acquire(self.key.as_str(), TTL).await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        guard.release().await;
        Ok(())
    }
}
