//! rslock: Redlock over one Redis server, on one multiplexed connection.

use std::time::Duration;

use anyhow::Context as _;
use rslock::{LockGuard, LockManager};

use super::{Client, Step, Subject, TTL, Use};

pub(super) const SETTINGS: &str = "one Redis server, one multiplexed connection (it has no other way); `acquire` and `release`; under \
     contention a retry delay of up to 2 ms instead of 200 ms";

pub(super) struct Redlock {
    manager: LockManager,
}

struct Task {
    manager: LockManager,
    key: String,
    guard: Option<LockGuard>,
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
        Box::new(Task {
            manager: self.manager.clone(),
            key: key.to_owned(),
            guard: None,
        })
    }

    fn close(&self) -> Step<'_> {
        // The connection closes with the last clone of the manager.
        Box::pin(async { Ok(()) })
    }
}

impl Client for Task {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            self.guard = Some(self.manager.acquire(self.key.as_str(), TTL).await?);
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            self.guard.take().context("locked before")?.release().await;
            Ok(())
        })
    }
}
