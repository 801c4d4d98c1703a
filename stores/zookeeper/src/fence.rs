//! The fence check for a transaction of the user's own in the same ZooKeeper.

use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::{StoreError, StoreErrorKind};

use tokio::time::timeout;

use crate::rows;
use crate::session::Ensemble;

/// How long a server may take.
const LIMIT: Duration = Duration::from_secs(5);

/// The node of a lock's row, and its version while the row had the owner's token. From
/// [`ZookeeperStore::fence`](crate::ZookeeperStore::fence).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fence {
    /// The whole path of the node.
    pub path: String,
    /// The version of the node. It changes when anybody gets the lock, and also when the lease is renewed.
    pub version: i32,
}

/// `None` if the row does not have the token any more.
pub(crate) async fn fence(ensemble: &Ensemble, key: &str, token: i64) -> Result<Option<Fence>, StoreError> {
    let key =
        Key::new(None, key).map_err(|error| StoreError::new(StoreErrorKind::Other, error.to_string()))?;
    let (ensemble, client) = ensemble.of_manager()?;
    let found = timeout(LIMIT, rows::read(&ensemble, &client, &[&key]))
        .await
        .unwrap_or_else(|_| {
            let message = format!("ZooKeeper has not answered within {LIMIT:?}");
            Err(StoreError::new(StoreErrorKind::Interrupted, message))
        });
    let found = found.map_err(|error| ensemble.failed(&client, error))?;
    let found = found.into_iter().next().transpose()?;
    // All who share a lock have its token, also one whose own hold is over.
    let holds =
        |found: &rows::Found| found.row.is_held() && !found.row.is_shared() && found.row.fence_token == token;
    let version = found.filter(holds).and_then(|found| found.version);
    let path = ensemble.place.row(&key);
    Ok(version.map(|version| Fence { path, version }))
}
