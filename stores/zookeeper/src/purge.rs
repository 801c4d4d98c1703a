//! Deletes rows that nobody has used for long.

use std::time::Duration;

use dblock_core::Key;
use dblock_core::store::{Purged, StoreError};
use zookeeper_client::Client;

use crate::admin::keys;
use crate::rows;
use crate::rows::Found;
use crate::session::Ensemble;

/// [`Store::purge`](dblock_core::store::Store::purge). Each step lists the names of all rows.
pub(crate) async fn purge(
    ensemble: &Ensemble,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let client = ensemble.client().await?;
    let purged = purge_step(ensemble, &client, idle, after, limit).await;
    purged.map_err(|error| ensemble.failed(&client, error))
}

async fn purge_step(
    ensemble: &Ensemble,
    client: &Client,
    idle: Duration,
    after: Option<&Key>,
    limit: u32,
) -> Result<Purged, StoreError> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let keys = keys(ensemble, client).await?;
    let keys: Vec<&Key> = keys.iter().filter(|key| Some(*key) > after).take(limit).collect();
    let found = rows::read(ensemble, client, &keys).await?;
    let is_idle = |found: &Found| {
        let row = &found.row;
        let (used, before) = (row.expire_at.max(row.wanted_until), row.now - idle);
        found.version.is_some() && used <= before && row.fence_ceiling <= before.as_micros()
    };
    let found: Vec<Found> = found.into_iter().flatten().filter(is_idle).collect();
    let rows = rows::delete(ensemble, client, &found).await?;
    let next = keys
        .last()
        .filter(|_| keys.len() == limit)
        .map(|key| (*key).clone());
    Ok(Purged::new(rows, next))
}
