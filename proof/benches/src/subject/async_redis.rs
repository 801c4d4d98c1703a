//! async-redis-lock: Lua scripts on one Redis server, on one shared connection, with renewal.

use std::time::Duration;

use async_redis_lock::{Lock, Locker, Options};

use super::guarded::{Guarded, client};
use super::{Client, Subject, TIMEOUT, TTL, Use};

pub(super) const SETTINGS: &str = "one shared connection (it has no other way); `acquire_with_options` and `release`; under contention it \
     retries after 2 ms instead of 100 ms";

pub(super) struct AsyncRedis {
    locker: Locker,
    options: Options,
}

struct Task {
    locker: Locker,
    options: Options,
    key: String,
}

pub(super) async fn open(url: &str, plan: Use) -> anyhow::Result<AsyncRedis> {
    let mut options = Options::new().timeout(Some(TIMEOUT)).ttl(TTL).extend(TTL / 3);
    if plan.contended {
        options = options.retry(Duration::from_millis(2));
    }
    Ok(AsyncRedis {
        locker: Locker::from_redis_url(url).await?,
        options,
    })
}

impl Subject for AsyncRedis {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            locker: self.locker.clone(),
            options: self.options.clone(),
            key: key.to_owned(),
        })
    }
}

impl Guarded for Task {
    type Guard = Lock;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        let taken = self.locker.acquire_with_options(&self.options, self.key.as_str());
        Ok(taken.await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(guard.release().await?)
    }
}
