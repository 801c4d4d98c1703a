//! etcd's own lock: the server's calls `Lock` and `Unlock`, through the client that dblock uses.

use dblock_etcd::etcd_client::{Client as Connection, LockOptions};

use super::guarded::{Guarded, client};
use super::{Client, Subject};

/// Longer than any round, so that nothing has to be renewed.
const LEASE_SECONDS: i64 = 300;

pub(super) struct EtcdLock {
    connection: Connection,
}

struct Task {
    connection: Connection,
    key: String,
    /// Kept for all pairs. With the lease of another task of the same key, the two would have the same lock.
    lease: Option<i64>,
}

pub(super) async fn open(url: &str) -> anyhow::Result<EtcdLock> {
    let connection = Connection::connect([url], None).await?;
    Ok(EtcdLock { connection })
}

impl Subject for EtcdLock {
    fn client(&self, key: &str) -> Box<dyn Client> {
        client(Task {
            connection: self.connection.clone(),
            key: format!("recipe/{key}"),
            lease: None,
        })
    }
}

impl Guarded for Task {
    type Guard = Vec<u8>;

    async fn acquire(&mut self) -> anyhow::Result<Self::Guard> {
        let lease = match self.lease {
            Some(lease) => lease,
            None => self.connection.lease_grant(LEASE_SECONDS, None).await?.id(),
        };
        self.lease = Some(lease);
        let options = LockOptions::new().with_lease(lease);
        let locked = self.connection.lock(self.key.as_str(), Some(options)).await?;
        Ok(locked.key().to_vec())
    }

    async fn release(&mut self, guard: Self::Guard) -> anyhow::Result<()> {
        self.connection.unlock(guard).await?;
        Ok(())
    }
}
