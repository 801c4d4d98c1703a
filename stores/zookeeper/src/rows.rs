//! Rows with the version of their nodes: reading them, then the clock, and writing one if nobody else has
//! written it since.
//!
//! The version does what a lock of the row does in a SQL database: a process that has read it is either the
//! next to write, or does not write. The clock is read after the row, as it would be after locking it. If it
//! were read before, a release could pass the row on with a lease that began before its successor asked for
//! it, and ended before the successor expects that.
//!
//! A node that is deleted and made again starts at version 0, so its version alone does not tell the new one
//! from the old. That of `purges` does: whoever deletes a row's node also writes `purges`, in one
//! transaction, and every write of a row checks that `purges` has the version that was read before the row.
//!
//! ZooKeeper tells the time of a write only, so a node of ours is written to read the clock. ZooKeeper
//! carries out the requests of a session in order, and one message has all of these:
//!
//! 1. a `sync`, because the server that we are connected to may lag behind;
//! 2. the reads, of `purges` first;
//! 3. the write of the clock. No server that has lost its majority can carry it out, so it also shows that
//!    the `sync` has asked the leader of its time.
//!
//! What the holder asks for, and an acquire of a row that is free, need neither the clock nor the `sync`
//! ([`put_with`]): they are carried out at the time of their write, and a row that was read out of date is not
//! written. So it may be a row that was read long before ([`held`](crate::held)).

use dblock_core::store::clock::Timestamp;
use dblock_core::store::{Action, Outcome, Request, StoreError, StoreErrorKind};
use dblock_core::{Key, LockRow};
use futures_util::future::join_all;
use uuid::Uuid;
use zookeeper_client::{Client, CreateMode, Error, MultiWriteError, MultiWriteResult, OneshotWatcher, Stat};

use crate::place::Place;
use crate::session::Ensemble;
use crate::{error, row};

/// A row, the version of its node (`None` where there is no node), and the version of `purges` before it was
/// read.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) row: LockRow,
    pub(crate) version: Option<i32>,
    pub(crate) purges: i32,
}

impl Found {
    /// Whether the lease holds the row, or has held it last.
    pub(crate) fn is_of(&self, lease_id: Uuid) -> bool {
        let holds = self.row.lease_id == lease_id && self.row.reentrant_count > 0;
        holds && !self.version.is_some_and(is_old)
    }

    /// Whether the outcome depends on nothing but the time of the write, so that [`put_with`] can be used. The
    /// answer to the write that replaces an old node does not tell its time.
    pub(crate) fn fits(&self, request: &Request) -> bool {
        match &request.action {
            Action::Acquire(_) => {
                let row = &self.row;
                let is_free = row.reentrant_count == 0 && row.lease_id != request.lease_id;
                // That the tokens are used up must be known before.
                is_free && row.fence_ceiling < i64::MAX / 2 && !self.version.is_some_and(is_old)
            }
            Action::Extend(ask) => ask.share.is_none() && self.is_of(request.lease_id),
            Action::Release => self.is_of(request.lease_id),
            _ => false,
        }
    }

    /// The row and its versions after it was written.
    pub(crate) fn written(mut self) -> Self {
        let replaced = self.version.is_some_and(is_old);
        self.purges = self.purges.wrapping_add(replaced.into());
        self.version = match self.version {
            Some(version) if !replaced => Some(version + 1),
            _ => Some(0),
        };
        self
    }
}

/// Whether a row was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    Written,
    /// Somebody else has written the row since it was read, or any row was purged. Nothing was written.
    Outrun,
}

/// Reads the rows of `keys`, as they are after this was called. One that cannot be read fails alone.
pub(crate) async fn read(
    ensemble: &Ensemble,
    client: &Client,
    keys: &[&Key],
) -> Result<Vec<Result<Found, StoreError>>, StoreError> {
    // Each request is sent here, and not when its answer is awaited.
    let clock = ensemble.place.clock();
    let synced = client.sync(&clock);
    let purges = client.get_data(&ensemble.place.purges());
    let rows: Vec<_> = keys
        .iter()
        .map(|key| client.get_data(&ensemble.place.row(key)))
        .collect();
    let clock = client.set_data(&clock, &[], None);
    let (synced, purges, rows, clock) = futures_util::join!(synced, purges, join_all(rows), clock);
    synced.map_err(error::of_look)?;
    let purges = purges.map_err(error::of_look)?.1.version;
    let now = written_at(&clock.map_err(error::of_look)?);
    let rows = rows.into_iter().zip(keys);
    Ok(rows
        .map(|(row, key)| found(row, key, purges, Some(now)))
        .collect())
}

/// Reads the rows of `keys` as the server knows them that we are connected to, each by the time of its write. They
/// may be out of date.
pub(crate) async fn glance(
    place: &Place,
    client: &Client,
    keys: &[&Key],
) -> Result<Vec<Result<Found, StoreError>>, StoreError> {
    // Each request is sent here, too, and `purges` first.
    let purges = client.get_data(&place.purges());
    let rows: Vec<_> = keys.iter().map(|key| client.get_data(&place.row(key))).collect();
    let (purges, rows) = futures_util::join!(purges, join_all(rows));
    let purges = purges.map_err(error::of_look)?.1.version;
    let rows = rows.into_iter().zip(keys);
    Ok(rows.map(|(row, key)| found(row, key, purges, None)).collect())
}

/// As [`glance`], of a row that is there. Also returns what tells of the next write.
pub(crate) async fn watch(
    place: &Place,
    client: &Client,
    key: &Key,
) -> Result<(Found, OneshotWatcher), StoreError> {
    let path = place.row(key);
    let purges = client.get_data(&place.purges());
    let row = client.get_and_watch_data(&path);
    let (purges, row) = futures_util::join!(purges, row);
    let (data, stat, written) = row.map_err(error::of_look)?;
    let purges = purges.map_err(error::of_look)?.1.version;
    Ok((found(Ok((data, stat)), key, purges, None)?, written))
}

/// The row that a node has, by the clock `now`, or by the time of its write.
fn found(
    node: Result<(Vec<u8>, Stat), Error>,
    key: &Key,
    purges: i32,
    now: Option<Timestamp>,
) -> Result<Found, StoreError> {
    let (row, version) = match node {
        Ok((data, stat)) => {
            let written_at = written_at(&stat);
            let row = row::read(&data, key, written_at, now.unwrap_or(written_at))?;
            (row, Some(stat.version))
        }
        Err(Error::NoNode) => (LockRow::new(key.clone(), now.unwrap_or_default()), None),
        Err(error) => return Err(error::of_look(error)),
    };
    Ok(Found { row, version, purges })
}

/// When a node was written.
pub(crate) fn written_at(stat: &Stat) -> Timestamp {
    Timestamp::from_micros(stat.mtime * 1_000)
}

/// Writes a row over the one that was read with it.
pub(crate) async fn put(ensemble: &Ensemble, client: &Client, found: &Found) -> Result<Put, StoreError> {
    let written = write(ensemble, client, found, &row::written(&found.row, None)?).await?;
    Ok(if written.is_some() {
        Put::Written
    } else {
        Put::Outrun
    })
}

/// Carries out, by one write, a request that the row [fits](Found::fits). Returns the answer, with the row as it is
/// then. `None`: somebody else has written the row since it was read, and nothing was written.
pub(crate) async fn put_with(
    ensemble: &Ensemble,
    client: &Client,
    request: &Request,
    found: Found,
) -> Result<Option<(Outcome, Found)>, StoreError> {
    let data = row::written(&found.row, Some(request))?;
    let Some(written) = write(ensemble, client, &found, &data).await? else {
        return Ok(None);
    };
    let mut found = found.written();
    found.row.now = match written {
        Some(stat) => written_at(&stat),
        None => made_at(ensemble, client, &found).await?,
    };
    let outcome = row::carry_out(request, &mut found.row)?;
    Ok(Some((outcome, found)))
}

/// When a node was made. Some servers do not tell it with the answer (ZOOKEEPER-4667).
async fn made_at(ensemble: &Ensemble, client: &Client, found: &Found) -> Result<Timestamp, StoreError> {
    let stat = client.check_stat(&ensemble.place.row(&found.row.key)).await;
    match stat.map_err(error::of_written)? {
        Some(stat) if Some(stat.version) == found.version => Ok(written_at(&stat)),
        _ => {
            let message = "the row was written again before it was known when it was made";
            Err(StoreError::new(StoreErrorKind::Interrupted, message))
        }
    }
}

/// Writes the row's node over the one that was read. `None`: it was written since, or any row was purged, and
/// nothing was written. Else the node's `Stat`, if it was told.
async fn write(
    ensemble: &Ensemble,
    client: &Client,
    found: &Found,
    data: &[u8],
) -> Result<Option<Option<Stat>>, StoreError> {
    let path = ensemble.place.row(&found.row.key);
    let purges = ensemble.place.purges();
    let rows = ensemble.options(CreateMode::Persistent);
    let commit = || {
        let mut write = client.new_multi_writer();
        match found.version {
            Some(version) if is_old(version) => write.add_set_data(&purges, &[], Some(found.purges))?,
            _ => write.add_check_version(&purges, found.purges)?,
        }
        match found.version {
            None => write.add_create(&path, data, &rows)?,
            Some(version) if is_old(version) => {
                write.add_delete(&path, Some(version))?;
                write.add_create(&path, data, &rows)?;
            }
            Some(version) => write.add_set_data(&path, data, Some(version))?,
        }
        Ok::<_, Error>(write.commit())
    };
    let mut written = commit().map_err(error::of_look)?.await;
    if found.version.is_none() && fails(&written, 1, &Error::NoNode) {
        // ZooKeeper deletes a folder some time after its last row.
        let folder = ensemble.place.folder(&found.row.key);
        let made = client
            .mkdir(&folder, &ensemble.options(CreateMode::Container))
            .await;
        made.map_err(error::of_look)?;
        written = commit().map_err(error::of_look)?.await;
    }
    if is_outrun(&written, found.version.is_some()) {
        return Ok(None);
    }
    let mut results = written.map_err(|error| error::of_write(error.into()))?;
    Ok(Some(match results.pop() {
        Some(MultiWriteResult::SetData { stat }) => Some(stat),
        Some(MultiWriteResult::Create { stat, .. }) if !stat.is_invalid() => Some(stat),
        _ => None,
    }))
}

/// Whether somebody else was faster, with the row or with a purge.
fn is_outrun<T>(written: &Result<T, MultiWriteError>, had_node: bool) -> bool {
    let row = if had_node {
        fails(written, 1, &Error::BadVersion) || fails(written, 1, &Error::NoNode)
    } else {
        fails(written, 1, &Error::NodeExists)
    };
    row || fails(written, 0, &Error::BadVersion)
}

/// Whether this operation of the transaction failed with this error: 0 is that of `purges`, and 1 that of the
/// row.
fn fails<T>(written: &Result<T, MultiWriteError>, operation: usize, error: &Error) -> bool {
    matches!(written, Err(MultiWriteError::OperationFailed { index, source }) if *index == operation && source == error)
}

/// Deletes the rows that [`read`] has found together, and returns how many were deleted. If one was used
/// again, those that would be deleted in the same transaction stay until the next purge.
pub(crate) async fn delete(ensemble: &Ensemble, client: &Client, found: &[Found]) -> Result<u64, StoreError> {
    /// The longest names of so many rows fit into one message.
    const TOGETHER: usize = 100;
    let mut deleted = 0;
    let place = &ensemble.place;
    let Some(mut purges) = found.first().map(|found| found.purges) else {
        return Ok(deleted);
    };
    for found in found.chunks(TOGETHER) {
        let commit = || {
            let mut write = client.new_multi_writer();
            write.add_set_data(&place.purges(), &[], Some(purges))?;
            for found in found {
                write.add_delete(&place.row(&found.row.key), found.version)?;
            }
            Ok::<_, Error>(write.commit())
        };
        match commit().map_err(error::of_look)?.await {
            Ok(_) => {
                purges += 1;
                deleted += found.len() as u64;
            }
            // Somebody else purges, or a row was used again.
            Err(MultiWriteError::OperationFailed {
                source: Error::BadVersion | Error::NoNode,
                ..
            }) => {}
            Err(error) => return Err(error::of_write(error.into())),
        }
    }
    Ok(deleted)
}

/// A version is a number of 32 bits that starts anew from the lowest one, and -1 stands for any version. So a
/// node that was written very often is replaced by a new one, whose versions begin at 0.
fn is_old(version: i32) -> bool {
    const OLD: i32 = if cfg!(test) { 50 } else { 1 << 30 };
    version >= OLD
}
