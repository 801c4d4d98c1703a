//! The calls of operators: all rows, and changes of one.

use std::collections::BTreeSet;

use dblock_core::store::{StoreError, StoreErrorKind};
use dblock_core::{InspectFilter, Key, LockRow};
use futures_util::future::join_all;
use zookeeper_client::{Client, Error};

use crate::rows::{Found, Put};
use crate::session::Ensemble;
use crate::{error, place, rows};

/// How many rows are read at once.
const STEP: usize = 500;

/// [`Store::inspect`](dblock_core::store::Store::inspect). It lists the names of all rows, unless one key alone is
/// wanted.
pub(crate) async fn inspect(ensemble: &Ensemble, filter: &InspectFilter) -> Result<Vec<LockRow>, StoreError> {
    let client = ensemble.client().await?;
    let rows = select(ensemble, &client, filter).await;
    rows.map_err(|error| ensemble.failed(&client, error))
}

async fn select(
    ensemble: &Ensemble,
    client: &Client,
    filter: &InspectFilter,
) -> Result<Vec<LockRow>, StoreError> {
    let by_key = !filter.get_urgent_first();
    let after = filter
        .get_after()
        .map(|position| &position.key)
        .filter(|_| by_key);
    let limit = usize::try_from(filter.get_limit()).unwrap_or(usize::MAX);
    // A look at one key, which comes before the keys that begin with it.
    if by_key
        && after.is_none()
        && limit == 1
        && let Ok(key) = Key::new(None, filter.get_prefix())
    {
        let rows = filter.select(read(ensemble, client, &[&key]).await?);
        if !rows.is_empty() {
            return Ok(rows);
        }
    }
    let keys = keys(ensemble, client).await?;
    let wanted = |key: &&Key| key.as_str().starts_with(filter.get_prefix()) && Some(*key) > after;
    let keys: Vec<&Key> = keys.iter().filter(wanted).collect();
    let mut rows = Vec::new();
    for keys in keys.chunks(STEP) {
        rows.extend(filter.select(read(ensemble, client, keys).await?));
        if by_key && rows.len() >= limit {
            break;
        }
    }
    Ok(filter.select(rows))
}

/// The rows of those keys that have one.
async fn read(ensemble: &Ensemble, client: &Client, keys: &[&Key]) -> Result<Vec<LockRow>, StoreError> {
    let found = rows::read(ensemble, client, keys).await?;
    let found: Vec<Found> = found.into_iter().collect::<Result<_, _>>()?;
    Ok(found
        .into_iter()
        .filter_map(|found| found.version.map(|_| found.row))
        .collect())
}

/// The keys of all rows.
pub(crate) async fn keys(ensemble: &Ensemble, client: &Client) -> Result<BTreeSet<Key>, StoreError> {
    let locks = ensemble.place.locks();
    // A server that lags behind would not know the newest rows.
    let (synced, folders) = futures_util::join!(client.sync(&locks), children(client, &locks));
    synced.map_err(error::of_look)?;
    let folders: Vec<_> = folders?
        .iter()
        .map(|folder| format!("{locks}/{folder}"))
        .collect();
    let names = join_all(folders.iter().map(|folder| children(client, folder))).await;
    let mut keys = BTreeSet::new();
    for names in names {
        // A name that is none of ours cannot be a lock's.
        keys.extend(names?.iter().filter_map(|name| place::key(name)));
    }
    Ok(keys)
}

/// The names below a node; none where the node is gone.
async fn children(client: &Client, path: &str) -> Result<Vec<String>, StoreError> {
    match client.list_children(path).await {
        Err(Error::NoNode) => Ok(Vec::new()),
        names => names.map_err(error::of_look),
    }
}

/// Reads the row of `key`, and changes it if it is held. Returns whether it was.
pub(crate) async fn operate(
    ensemble: &Ensemble,
    key: &Key,
    change: impl Fn(&mut LockRow),
) -> Result<bool, StoreError> {
    /// The holder of a key writes its row a few times a second, and waiters do.
    const TRIES: usize = 20;
    let client = ensemble.client().await?;
    let operated = async {
        for _ in 0..TRIES {
            let found = rows::read(ensemble, &client, &[key])
                .await?
                .into_iter()
                .next()
                .transpose()?;
            let Some(mut found) = found.filter(|found| found.row.is_held()) else {
                return Ok(false);
            };
            change(&mut found.row);
            if rows::put(ensemble, &client, &found).await? == Put::Written {
                return Ok(true);
            }
        }
        let message = format!(
            "the row of {key:?} was changed by others {TRIES} times while it was about to be changed"
        );
        Err(StoreError::new(StoreErrorKind::Conflict, message))
    };
    operated.await.map_err(|error| ensemble.failed(&client, error))
}
