//! etcd's own lock: the server's calls `Lock` and `Unlock`, through the client that dblock uses.

use anyhow::Context as _;
use dblock_etcd::etcd_client::{Client as Connection, LockOptions};

use super::{Client, Step, Subject};

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
    held: Option<Vec<u8>>,
}

pub(super) async fn open(url: &str) -> anyhow::Result<EtcdLock> {
    let connection = Connection::connect([url], None).await?;
    Ok(EtcdLock { connection })
}

impl Subject for EtcdLock {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Task {
            connection: self.connection.clone(),
            key: format!("recipe/{key}"),
            lease: None,
            held: None,
        })
    }

    fn close(&self) -> Step<'_> {
        // The connection closes with its last clone.
        Box::pin(async { Ok(()) })
    }
}

impl Client for Task {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            let lease = match self.lease {
                Some(lease) => lease,
                None => self.connection.lease_grant(LEASE_SECONDS, None).await?.id(),
            };
            self.lease = Some(lease);
            let options = LockOptions::new().with_lease(lease);
            let locked = self.connection.lock(self.key.as_str(), Some(options)).await?;
            self.held = Some(locked.key().to_vec());
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            let held = self.held.take().context("locked before")?;
            self.connection.unlock(held).await?;
            Ok(())
        })
    }
}
