//! How a row is written: as JSON, so that people can read it with ZooKeeper's own tools.
//!
//! A process that writes a row does not know the time: ZooKeeper tells that of a write only when it is done. So a
//! request whose outcome depends on nothing but the row and that time is written beside the row as it was
//! ([`Columns::then`]), and everybody who reads the row carries it out, by the time of that write. All come to
//! the same end. So it costs one write, and no look at the clock.

use dblock_core::store::clock::{Timestamp, length, micros};
use dblock_core::store::{
    Acquire, Action, Extend, HandedOver, Outcome, Request, SharedHold, StoreError, StoreErrorKind, Successor,
    rules,
};
use dblock_core::{Key, LockRow};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The format that this version writes. It reads no other.
const FORMAT: u32 = 4;

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
    /// Who shares the lock.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    shared: Vec<Hold>,
    next: Option<Next>,
    /// What is carried out at the time of this write.
    then: Option<Then>,
}

/// A request, without what means nothing to a row that is free or held by the request's lease.
#[derive(Serialize, Deserialize)]
enum Then {
    Acquire {
        lease: Uuid,
        owner: Uuid,
        holder: String,
        ttl: i64,
        spare_tokens: u32,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
    },
    Extend {
        count: u32,
        ttl: i64,
        handed_over: Option<To>,
    },
    Release,
}

/// The owner after a local hand-over.
#[derive(Serialize, Deserialize)]
struct To {
    owner: Uuid,
    holder: String,
    fence_token: i64,
}

impl Then {
    /// `None` for a request that this version does not know.
    fn of(request: &Request) -> Option<Self> {
        Some(match &request.action {
            Action::Acquire(ask) => Self::Acquire {
                lease: request.lease_id,
                owner: ask.owner,
                holder: ask.holder.to_string(),
                ttl: micros(ask.ttl),
                spare_tokens: ask.spare_tokens,
                limit: ask.limit,
            },
            Action::Extend(ask) => Self::Extend {
                count: ask.count,
                ttl: micros(ask.ttl),
                handed_over: ask.handed_over.as_ref().map(|to| To {
                    owner: to.owner,
                    holder: to.holder.to_string(),
                    fence_token: to.fence_token,
                }),
            },
            Action::Release => Self::Release,
            _ => return None,
        })
    }

    fn request(self, row: &LockRow) -> Request {
        let (lease, action) = match self {
            Self::Acquire {
                lease,
                owner,
                holder,
                ttl,
                spare_tokens,
                limit,
            } => {
                let mut ask = Acquire::new(owner, length(ttl), holder);
                (ask.spare_tokens, ask.limit) = (spare_tokens, limit);
                (lease, Action::Acquire(ask))
            }
            Self::Extend {
                count,
                ttl,
                handed_over,
            } => {
                let mut ask = Extend::new(count, length(ttl));
                ask.handed_over = handed_over.map(|to| HandedOver::new(to.owner, to.holder, to.fence_token));
                (row.lease_id, Action::Extend(ask))
            }
            Self::Release => (row.lease_id, Action::Release),
        };
        Request::new(row.key.clone(), lease, action)
    }
}

/// The hold of a process that shares the lock.
#[derive(Serialize, Deserialize)]
struct Hold {
    lease: Uuid,
    holder: String,
    count: u32,
    number: u64,
    until: i64,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
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
        limit: next.limit,
    });
    let hold = |hold: Hold| {
        let mut read = SharedHold::new(hold.lease, hold.holder, Timestamp::from_micros(hold.until));
        (read.count, read.number) = (hold.count, hold.number);
        read
    };
    row.shared = columns.shared.into_iter().map(hold).collect();
    if let Some(then) = columns.then {
        carry_out(&then.request(&row), &mut row)?;
    }
    row.now = now;
    Ok(row)
}

/// Carries the request out at the time [`LockRow::now`].
pub(crate) fn carry_out(request: &Request, row: &mut LockRow) -> Result<Outcome, StoreError> {
    rules::carry_out(request, row).map(|carried_out| carried_out.outcome)
}

/// The content of the row's node. The request is carried out at the time of this write.
pub(crate) fn written(row: &LockRow, then: Option<&Request>) -> Result<Vec<u8>, StoreError> {
    let hold = |hold: &SharedHold| Hold {
        lease: hold.lease_id,
        holder: hold.holder.clone(),
        count: hold.count,
        number: hold.number,
        until: hold.expire_at.as_micros(),
    };
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
        shared: row.shared.iter().map(hold).collect(),
        next: row.next.as_ref().map(|next| Next {
            holder: next.holder.clone(),
            since: next.since.as_micros(),
            until: next.until.as_micros(),
            ttl: micros(next.ttl),
            spare_tokens: next.spare_tokens,
            lease: next.lease_id,
            owner: next.owner,
            limit: next.limit,
        }),
        then: then.and_then(Then::of),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_another_format_is_not_read() {
        let key = Key::new(None, "k").unwrap();
        let data = written(&LockRow::new(key.clone(), Timestamp::default()), None).unwrap();
        let now = Timestamp::default();
        assert!(read(&data, &key, now, now).is_ok());
        let own = format!("\"format\":{FORMAT},");
        for other in [FORMAT - 1, FORMAT + 1] {
            let text = String::from_utf8(data.clone()).unwrap();
            let other = text.replace(&own, &format!("\"format\":{other},"));
            assert_ne!(text, other);
            let error = read(other.as_bytes(), &key, now, now).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
        }
    }
}
