//! SQL text for batches.
//!
//! A batch goes to the server as a few statements in one packet, which the protocol allows for text but
//! not for prepared statements: two round trips for a batch of any size and any mix of actions. Every
//! value is written as a number or as hexadecimal digits, so no value can be taken for SQL, whatever
//! the session's `sql_mode` and character set are.

use std::fmt::Write as _;

use super::rules::{Change, Grant};
use crate::Key;
use crate::store::{LockRow, Request};

/// The columns in the order in which rows are read.
pub(super) const COLUMNS: &str = "lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
                                  fence_ceiling, wanted_until, acquired_at, holder, revoked";

/// µs since the Unix epoch when the statement started. Not `UNIX_TIMESTAMP(NOW(6))`: that one jumps when
/// daylight saving ends, and follows the session's time zone.
pub(super) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// Locks the rows that nobody else has locked and reads them, then the clock.
///
/// The clock is a statement of its own because `UTC_TIMESTAMP` is the start of its statement: this way
/// it is read after the locks were had, and an expired lease cannot look alive. READ COMMITTED takes no
/// gap locks here. The index is forced because in a small table a scan looks cheaper, and a scan would
/// touch the rows of others.
pub(super) fn lock_rows<'a>(table: &str, keys: impl Iterator<Item = &'a Key>) -> String {
    let keys = key_list(keys);
    format!(
        "START TRANSACTION;SELECT {COLUMNS} FROM {table} FORCE INDEX (PRIMARY) WHERE lock_key IN ({keys}) \
         ORDER BY lock_key FOR UPDATE SKIP LOCKED;SELECT {CLOCK}"
    )
}

/// Reads the last committed state of rows, then the clock.
pub(super) fn read_rows<'a>(table: &str, keys: impl Iterator<Item = &'a Key>) -> String {
    let keys = key_list(keys);
    format!("SELECT {COLUMNS} FROM {table} WHERE lock_key IN ({keys});SELECT {CLOCK}")
}

/// Appends the update of one locked row. All values are known, so the order of the assignments, which
/// MySQL carries out from left to right, does not matter. The condition on `lease_id` is always true of
/// a locked row; it stands there because no write may depend on that.
pub(super) fn push_update(
    sql: &mut String,
    table: &str,
    request: &Request,
    row: &LockRow,
    change: &Change<'_>,
) {
    let key = hex(request.key.as_str().as_bytes());
    let was = hex(row.lease_id.as_bytes());
    let set = match change {
        Change::Hold(Grant {
            owner,
            holder,
            fence_token,
            acquired_at,
            expire_at,
        }) => format!(
            "lock_owner = {}, reentrant_count = 1, expire_at = {expire_at}, lease_id = {}, \
             fence_token = {fence_token}, fence_ceiling = {fence_token}, acquired_at = {acquired_at}, \
             holder = _utf8mb4 {}, revoked = FALSE",
            hex(owner.as_bytes()),
            hex(request.lease_id.as_bytes()),
            hex(holder.as_bytes()),
        ),
        Change::Extend { count, expire_at } => format!("reentrant_count = {count}, expire_at = {expire_at}"),
        Change::Free => "reentrant_count = 0".to_owned(),
        Change::Want { until } => format!("wanted_until = {until}"),
    };
    let _ = write!(
        sql,
        "UPDATE {table} SET {set} WHERE lock_key = {key} AND lease_id = {was};"
    );
}

/// One plain insert. `ON DUPLICATE KEY UPDATE` would lock gaps and end in deadlocks.
pub(super) fn insert<'a>(table: &str, rows: impl Iterator<Item = (&'a Request, &'a Grant<'a>)>) -> String {
    let mut sql = format!("INSERT INTO {table} ({COLUMNS}) VALUES ");
    for (index, (request, grant)) in rows.enumerate() {
        let Grant {
            owner,
            holder,
            fence_token,
            acquired_at,
            expire_at,
        } = grant;
        let _ = write!(
            sql,
            "{}({}, {}, 1, {expire_at}, {}, {fence_token}, {fence_token}, 0, {acquired_at}, _utf8mb4 {}, FALSE)",
            if index == 0 { "" } else { ", " },
            hex(request.key.as_str().as_bytes()),
            hex(owner.as_bytes()),
            hex(request.lease_id.as_bytes()),
            hex(holder.as_bytes()),
        );
    }
    sql
}

fn key_list<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
    keys.map(|key| hex(key.as_str().as_bytes()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A binary string literal.
pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("X'");
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)]);
        text.push(DIGITS[usize::from(byte & 15)]);
    }
    text.push('\'');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_digits_only() {
        assert_eq!(hex(b"a'; --\\"), "X'61273B202D2D5C'");
        assert_eq!(hex(b""), "X''");
        assert_eq!(hex(&[0, 255]), "X'00FF'");
    }
}
