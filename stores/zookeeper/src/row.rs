//! How a row is written: as JSON, so that people can read it with ZooKeeper's own tools.
//!
//! A process that releases a row does not know the time: ZooKeeper tells that of a write only when it is
//! done. So the release is written as the wish to release ([`Columns::ends`]), and everybody who reads the
//! row carries it out, by the time of that write. All come to the same end: the row is free, or its successor
//! has it.

use dblock_core::store::clock::{Timestamp, length, micros};
use dblock_core::store::{Action, Outcome, Request, StoreError, StoreErrorKind, Successor, rules};
use dblock_core::{Key, LockRow};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The format that this version writes. It reads no other.
const FORMAT: u32 = 2;

/// The columns of a row, without its key and the clock. Times are in µs since the Unix epoch.
#[derive(Serialize, Deserialize)]
struct Columns {
    format: u32,
    holder: String,
    reentrant_count: u32,
    expire_at: i64,
    fence_token: i64,
    fence_ceiling: i64,
    wanted_until: i64,
    acquired_at: i64,
    revoked: bool,
    lease: Uuid,
    owner: Uuid,
    next: Option<Next>,
    /// The holder releases the row at the time of this write.
    ends: bool,
}

/// The successor.
#[derive(Serialize, Deserialize)]
struct Next {
    holder: String,
    since: i64,
    until: i64,
    ttl: i64,
    spare_tokens: u32,
    lease: Uuid,
    owner: Uuid,
}

/// The row of `key` that was written at a time, by the clock `now`.
pub(crate) fn read(
    data: &[u8],
    key: &Key,
    written_at: Timestamp,
    now: Timestamp,
) -> Result<LockRow, StoreError> {
    let columns: Columns = serde_json::from_slice(data).map_err(|error| no_row(key).with_source(error))?;
    if columns.format != FORMAT {
        return Err(no_row(key));
    }
    let mut row = LockRow::new(key.clone(), written_at);
    row.owner = columns.owner;
    row.reentrant_count = columns.reentrant_count;
    row.expire_at = Timestamp::from_micros(columns.expire_at);
    row.lease_id = columns.lease;
    row.fence_token = columns.fence_token;
    row.fence_ceiling = columns.fence_ceiling;
    row.wanted_until = Timestamp::from_micros(columns.wanted_until);
    row.acquired_at = Timestamp::from_micros(columns.acquired_at);
    row.holder = columns.holder;
    row.revoked = columns.revoked;
    row.next = columns.next.map(|next| Successor {
        lease_id: next.lease,
        owner: next.owner,
        holder: next.holder,
        ttl: length(next.ttl),
        spare_tokens: next.spare_tokens,
        since: Timestamp::from_micros(next.since),
        until: Timestamp::from_micros(next.until),
    });
    if columns.ends {
        end(&mut row)?;
    }
    row.now = now;
    Ok(row)
}

/// The row after the holder has released it at the time [`LockRow::now`], and the answer to the holder.
pub(crate) fn end(row: &mut LockRow) -> Result<Outcome, StoreError> {
    let release = Request::new(row.key.clone(), row.lease_id, Action::Release);
    rules::carry_out(&release, row).map(|released| released.outcome)
}

/// The content of the row's node. With `ends` its holder releases it by this write.
pub(crate) fn written(row: &LockRow, ends: bool) -> Result<Vec<u8>, StoreError> {
    let columns = Columns {
        format: FORMAT,
        holder: row.holder.clone(),
        reentrant_count: row.reentrant_count,
        expire_at: row.expire_at.as_micros(),
        fence_token: row.fence_token,
        fence_ceiling: row.fence_ceiling,
        wanted_until: row.wanted_until.as_micros(),
        acquired_at: row.acquired_at.as_micros(),
        revoked: row.revoked,
        lease: row.lease_id,
        owner: row.owner,
        next: row.next.as_ref().map(|next| Next {
            holder: next.holder.clone(),
            since: next.since.as_micros(),
            until: next.until.as_micros(),
            ttl: micros(next.ttl),
            spare_tokens: next.spare_tokens,
            lease: next.lease_id,
            owner: next.owner,
        }),
        ends,
    };
    serde_json::to_vec(&columns).map_err(|error| {
        let message = format!("the row of {:?} cannot be written as JSON", row.key);
        StoreError::new(StoreErrorKind::Other, message).with_source(error)
    })
}

/// Something is there that this version has not written.
fn no_row(key: &Key) -> StoreError {
    let message = format!(
        "what ZooKeeper keeps in the place of the lock {key:?} is no lock of this version: upgrade dblock-zookeeper if a \
         later one has written it; else name another node in the URL, or delete it by hand"
    );
    StoreError::new(StoreErrorKind::Schema, message)
}
