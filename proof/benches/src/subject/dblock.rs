//! dblock itself, with its defaults.

use std::sync::Arc;

use ::dblock::store::{
    Capabilities, Outcome, PostgresStore, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp,
};
use ::dblock::{LockGuard, LockManager, LockOptions};
use dblock_conformance::forward_to_inner;
use dblock_redis::RedisStore;
use dblock_zookeeper::ZookeeperStore;

use super::guarded::{Guarded, client};
use super::{Client, Step, Subject, TIMEOUT, TTL};

pub(super) const SETTINGS: &str = "defaults; at most four connections of its own; `acquire` and `release`";

pub(super) const RECORDED_SETTINGS: &str = "defaults, with a recorder of metrics for Prometheus";

pub(super) const DEAF_SETTINGS: &str =
    "defaults, in a process that cannot listen, as behind PgBouncer; it polls";

pub(super) const SHARED_SETTINGS: &str = "defaults; `shared`, `acquire` and `release`";

pub(super) const LIMIT_SETTINGS: &str = "defaults; `limit(8)`, `acquire` and `release`";

pub(super) const TWO_SETTINGS: &str = "defaults; two keys together, with `acquire` and `release`";

/// The lock table of the scenarios that have no own one.
pub(super) const TABLE: &str = "bench_lock";
pub(super) const EMPTY_TABLE: &str = "bench_empty";
pub(crate) const MILLION_TABLE: &str = "bench_million";

pub(super) struct Dblock {
    locks: LockManager,
    options: LockOptions,
}

struct Task {
    locks: LockManager,
    key: String,
    options: LockOptions,
}

pub(super) async fn open(url: &str, table: &str) -> anyhow::Result<Dblock> {
    Ok(Dblock {
        locks: table_of(url, table).await?,
        options: LockOptions::new().ttl(TTL).wait(TIMEOUT),
    })
}

/// Locks that `share` makes shared.
pub(super) async fn open_shared(
    url: &str,
    share: impl FnOnce(LockOptions) -> LockOptions,
) -> anyhow::Result<Dblock> {
    let Dblock { locks, options } = open(url, TABLE).await?;
    let options = share(options);
    Ok(Dblock { locks, options })
}

/// A manager that is never woken up while others are.
pub(super) fn open_deaf(url: &str, table: &str) -> anyhow::Result<Dblock> {
    let store = Deaf {
        inner: Arc::new(PostgresStore::open(url, table).map_err(anyhow::Error::msg)?),
    };
    Ok(Dblock {
        locks: LockManager::builder(Arc::new(store) as Arc<dyn Store>).build_lazy()?,
        options: LockOptions::new().ttl(TTL).wait(TIMEOUT),
    })
}

#[derive(Debug)]
struct Deaf {
    inner: Arc<dyn Store>,
}

impl Store for Deaf {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        self.inner.apply(requests)
    }

    fn listen<'a>(&'a self, _: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async { StoreError::new(StoreErrorKind::Unsupported, "this process cannot listen") })
    }

    forward_to_inner!(but listen);
}

/// A manager as the scenarios use it.
pub(crate) async fn manager(url: &str) -> anyhow::Result<LockManager> {
    table_of(url, TABLE).await
}

/// A manager on a table of its own.
pub(crate) async fn table_of(url: &str, table: &str) -> anyhow::Result<LockManager> {
    let builder = if url.starts_with("redis:") {
        LockManager::builder(RedisStore::new(url)?)
    } else if url.starts_with("zookeeper:") {
        LockManager::builder(ZookeeperStore::new(url)?)
    } else if url.starts_with("http:") {
        #[cfg(not(feature = "etcd"))]
        anyhow::bail!("this program was built without the feature `etcd`");
        #[cfg(feature = "etcd")]
        LockManager::builder(dblock_etcd::EtcdStore::new([url])?)
    } else {
        LockManager::builder_for_url(url)?
    };
    Ok(builder.table(table).auto_migrate(true).build().await?)
}

impl Subject for Dblock {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            locks: self.locks.clone(),
            key: key.to_owned(),
            options: self.options.clone(),
        })
    }

    fn close(&self) -> Step<'_> {
        Box::pin(async {
            self.locks.shutdown(TIMEOUT).await;
            Ok(())
        })
    }
}

impl Guarded for Task {
    type Guard = LockGuard;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        Ok(self
            .locks
            .lock(&self.key)
            .options(&self.options)
            .acquire()
            .await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(guard.release().await?)
    }
}

/// Each client takes two keys together.
pub(super) struct Two(pub(super) Dblock);

struct TaskOfTwo {
    locks: LockManager,
    keys: [String; 2],
    options: LockOptions,
}

impl Subject for Two {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(TaskOfTwo {
            locks: self.0.locks.clone(),
            keys: [format!("{key}:two"), key.to_owned()],
            options: self.0.options.clone(),
        })
    }

    fn close(&self) -> Step<'_> {
        self.0.close()
    }
}

impl Guarded for TaskOfTwo {
    type Guard = LockGuard;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        Ok(self
            .locks
            .lock(&self.keys)
            .options(&self.options)
            .acquire()
            .await?)
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        Ok(guard.release().await?)
    }
}
