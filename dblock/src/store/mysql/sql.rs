//! SQL text for batches.
//!
//! A batch goes to the server as a few statements in one packet, which the protocol allows for text but not
//! for prepared statements. So a batch of any size and any mix of actions takes two round trips. Every value
//! is written as a number or as hexadecimal digits, so no value can be taken for SQL, whatever the session's
//! `sql_mode` and character set are.

use std::fmt::Write as _;

use crate::Key;
use crate::store::clock::micros;
use crate::store::fence::take::{ABSENT, AHEAD, HELD, LOCKED, SKIPPED, TAKEN};
use crate::store::sharing;
use crate::store::sql_row::{COLUMNS, NOT_SHARED, SHARED, shared_if_there};
use crate::store::{InspectFilter, LockRow};

/// Assignments that clear the row's successor.
pub(super) const NO_SUCCESSOR: &str = "next_lease = NULL, next_owner = NULL, next_holder = NULL, next_ttl = NULL, \
                                       next_spare = NULL, next_since = NULL, next_until = NULL";

/// µs since the Unix epoch when the statement started. Not `UNIX_TIMESTAMP(NOW(6))`: that one jumps when
/// daylight saving ends, and follows the session's time zone.
pub(super) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";

/// µs since the Unix epoch when this is evaluated, such as for a row that the statement has just locked. Only
/// for our own sessions: `SYSDATE` follows the session's time zone.
pub(super) const LIVE_CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))";

/// Whether a statement concerns the column `shared` too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shared {
    /// No: for exclusive locks.
    No,
    /// Yes, and it fails on a table of an earlier schema version.
    Yes,
    /// Yes, for people: NULL on a table of an earlier schema version.
    IfThere,
}

impl Shared {
    /// What follows the columns of a query, and its tables.
    fn select(self, table: &str) -> (String, String) {
        match self {
            Self::No => (String::new(), table.to_owned()),
            Self::Yes => (format!(", {SHARED}"), table.to_owned()),
            Self::IfThere => (
                format!(", {}", shared_if_there(table)),
                format!("{table} AS t, {NOT_SHARED}"),
            ),
        }
    }

    /// The columns to write.
    fn columns(self) -> impl Iterator<Item = &'static str> {
        COLUMNS.split(", ").chain((self == Self::Yes).then_some("shared"))
    }
}

/// Locks the rows that nobody else has locked and reads them, then the clock.
///
/// `UTC_TIMESTAMP` is the start of its statement. So a statement of its own reads the clock, after the rows were
/// locked, and an expired lease cannot seem alive. READ COMMITTED takes no gap locks here. The index is forced
/// because in a small table the plan may be a scan, which would lock the rows of others.
pub(super) fn lock_rows<'a>(table: &str, keys: impl Iterator<Item = &'a Key>, shared: Shared) -> Vec<String> {
    let keys = key_list(keys);
    let (more, table) = shared.select(table);
    let lock = format!(
        "START TRANSACTION;SELECT {COLUMNS}{more} FROM {table} FORCE INDEX (PRIMARY) WHERE lock_key IN ({keys}) \
         ORDER BY lock_key FOR UPDATE SKIP LOCKED"
    );
    vec![lock, format!("SELECT {CLOCK}")]
}

/// Reads the last committed state of rows, then the clock.
pub(super) fn read_rows<'a>(table: &str, keys: impl Iterator<Item = &'a Key>, shared: Shared) -> Vec<String> {
    let keys = key_list(keys);
    let (more, table) = shared.select(table);
    let read = format!("SELECT {COLUMNS}{more} FROM {table} WHERE lock_key IN ({keys})");
    vec![read, format!("SELECT {CLOCK}")]
}

/// Reads the last committed state of rows, each with the clock.
pub(super) fn look<'a>(table: &str, keys: impl Iterator<Item = &'a Key>, shared: Shared) -> String {
    let keys = key_list(keys);
    let (more, table) = shared.select(table);
    format!("SELECT {COLUMNS}, {LIVE_CLOCK}{more} FROM {table} WHERE lock_key IN ({keys})")
}

/// Returns a row if nobody has the row of the key locked. It locks the row for a moment.
pub(super) fn probe(table: &str, key: &Key) -> String {
    let key = hex(key.as_str().as_bytes());
    format!("SELECT 1 FROM {table} FORCE INDEX (PRIMARY) WHERE lock_key = {key} FOR UPDATE SKIP LOCKED")
}

/// The transactions that have rows locked, as far as this user may see them: the session, or 0 if it has gone and
/// left one that is prepared, and the start in µs. The server shows them as they were up to a tenth of a second
/// ago, and the start in its own time zone, whatever that of the session is.
pub(super) const LOCKING: &str = "SELECT CAST(trx_mysql_thread_id AS UNSIGNED), \
                                  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', CONVERT_TZ(trx_started, 'SYSTEM', '+00:00')) \
                                  FROM information_schema.innodb_trx \
                                  WHERE trx_rows_locked > 0 AND trx_mysql_thread_id <> CONNECTION_ID() LIMIT 2";

/// Reads the rows of `filter`, all with the same clock. They are sorted by a rank without an index, which each
/// acquire would have to maintain.
pub(super) fn inspect(table: &str, filter: &InspectFilter) -> String {
    let prefix = filter.get_prefix().as_bytes();
    let (prefix_hex, length) = (hex(prefix), prefix.len());
    let (order, behind) = if filter.get_urgent_first() {
        let order = "urgency, acquired_at, lock_key";
        let behind = filter.get_after().map(|after| {
            let key = hex(after.key.as_str().as_bytes());
            format!(
                "AND ({order}) > ({}, {}, {key})",
                after.rank,
                after.acquired_at.as_micros()
            )
        });
        (order, behind)
    } else {
        let key = filter.get_after().map(|after| hex(after.key.as_str().as_bytes()));
        ("lock_key", key.map(|key| format!("AND lock_key > {key}")))
    };
    // Columns and literals are bytes, so LEFT counts bytes and no character is a wildcard. The range makes it
    // start at the first such key.
    format!(
        "SELECT {COLUMNS}, {CLOCK}, {shared} FROM (SELECT {COLUMNS}, CASE \
             WHEN reentrant_count = 0 OR expire_at <= {CLOCK} THEN 2 \
             WHEN wanted_until > {CLOCK} OR next_until > {CLOCK} THEN 0 ELSE 1 END AS urgency \
             FROM {table} WHERE lock_key >= {first} AND LEFT(lock_key, {length}) = {prefix_hex}) AS t, {NOT_SHARED} \
         WHERE urgency <= {least} {behind} ORDER BY {order} LIMIT {limit}",
        shared = shared_if_there(table),
        first = if filter.get_urgent_first() {
            prefix_hex.clone()
        } else {
            hex(filter.first_key().as_bytes())
        },
        least = if filter.get_include_free() { 2 } else { 1 },
        behind = behind.unwrap_or_default(),
        limit = filter.get_limit(),
    )
}

/// Writes rows that this transaction has locked, whatever changed in each of them.
///
/// Every row exists and is locked by us, so none is inserted and nothing waits. That makes `ON DUPLICATE KEY
/// UPDATE` safe here: its deadlocks come from the gaps in which absent rows lie. A multi-row `UPDATE` is no
/// alternative: joined with a list of values, it scans the table.
pub(super) fn rewrite<'a>(table: &str, rows: impl Iterator<Item = &'a LockRow>, shared: Shared) -> String {
    let mut sql = insert(table, rows, shared);
    sql.push_str(" ON DUPLICATE KEY UPDATE ");
    // MariaDB does not know MySQL's newer form of VALUES(…). No value depends on another column, so the order of
    // the assignments does not matter.
    for (index, column) in shared.columns().skip(1).enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        let _ = write!(sql, "{comma}{column} = VALUES({column})");
    }
    sql
}

/// Inserts rows that were absent. Fails when one of them exists by now.
pub(super) fn insert<'a>(table: &str, rows: impl Iterator<Item = &'a LockRow>, shared: Shared) -> String {
    let columns: Vec<_> = shared.columns().collect();
    let mut sql = format!("INSERT INTO {table} ({}) VALUES ", columns.join(", "));
    for (index, row) in rows.enumerate() {
        let _ = write!(
            sql,
            "{}({}, {}, {}, {}, {}, {}, {}, {}, {}, _utf8mb4 {}, {}, ",
            if index == 0 { "" } else { ", " },
            hex(row.key.as_str().as_bytes()),
            hex(row.owner.as_bytes()),
            row.reentrant_count,
            row.expire_at.as_micros(),
            hex(row.lease_id.as_bytes()),
            row.fence_token,
            row.fence_ceiling,
            row.wanted_until.as_micros(),
            row.acquired_at.as_micros(),
            hex(row.holder.as_bytes()),
            i32::from(row.revoked),
        );
        let _ = match &row.next {
            None => write!(sql, "NULL, NULL, NULL, NULL, NULL, NULL, NULL"),
            Some(next) => write!(
                sql,
                "{}, {}, _utf8mb4 {}, {}, {}, {}, {}",
                hex(next.lease_id.as_bytes()),
                hex(next.owner.as_bytes()),
                hex(next.holder.as_bytes()),
                micros(next.ttl),
                next.spare_tokens,
                next.since.as_micros(),
                next.until.as_micros(),
            ),
        };
        if shared == Shared::Yes {
            let _ = match sharing::column(row) {
                None => write!(sql, ", NULL"),
                Some(text) => write!(sql, ", _utf8mb4 {}", hex(text.as_bytes())),
            };
        }
        sql.push(')');
    }
    sql
}

/// The answer of [`verify`] when the lease is gone.
pub(super) const GONE: &str = "gone";
/// The answer of [`verify`] when the transaction's snapshot is older than the lease.
pub(super) const STALE_SNAPSHOT: &str = "stale snapshot";

/// The user's driver sends text only. A number compared with text would be rounded.
const LEASE: &str = "UNHEX($2)";
const TOKEN: &str = "CAST($3 AS SIGNED)";

/// A lock of [`verify`]: MariaDB has no FOR SHARE, and MySQL no LOCK IN SHARE MODE that skips.
pub(super) const FOR_SHARE: &str = "/*M!100300 LOCK IN SHARE MODE*//*!80000 FOR SHARE*/";

/// `$1` key, `$2` lease, `$3` token, as text. Locks the row by `lock`, and returns what is left of the lease,
/// [`GONE`] or [`STALE_SNAPSHOT`]; nothing where there is no row, or others have it locked. The clock is that of the
/// statement's start, and does not depend on the session's time zone.
///
/// A locking read sees the newest row, but the user's plain reads see the transaction's snapshot. So a plain
/// read reads the token too (the lock does not reach into the nested query). A snapshot with another token is
/// older than the lease, and what the transaction has read may be from before the last owner's commit. It names the row
/// that is locked, or it would be carried out for a skipped one, too, and wait for it under SERIALIZABLE.
pub(super) fn verify(table: &str, lock: &str) -> String {
    format!(
        "SELECT CASE \
         WHEN lease_id <> {LEASE} OR fence_token <> {TOKEN} OR reentrant_count = 0 OR expire_at <= {CLOCK} THEN '{GONE}' \
         WHEN (SELECT seen.fence_token FROM {table} seen WHERE seen.lock_key = locked.lock_key) <=> {TOKEN} \
             THEN CAST(expire_at - {CLOCK} AS CHAR) \
         ELSE '{STALE_SNAPSHOT}' END \
         FROM {table} locked WHERE lock_key = $1 {lock} SKIP LOCKED"
    )
}

/// Parameters: as [`verify`], which has locked the row. The condition matters if no transaction is open.
pub(super) fn release_in(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = 0, {NO_SUCCESSOR} \
         WHERE lock_key = $1 AND lease_id = {LEASE} AND fence_token = {TOKEN} AND reentrant_count > 0"
    )
}

/// Parameters: as [`verify`]. Returns the holds of the row, or [`GONE`] when it names another lease. Nothing
/// when another transaction has it locked. Otherwise this one has it locked from then on, whatever the
/// answer.
pub(super) fn reads_release(table: &str) -> String {
    format!(
        "SELECT CASE WHEN lease_id = {LEASE} AND fence_token = {TOKEN} \
         THEN CAST(reentrant_count AS CHAR) ELSE '{GONE}' END FROM {table} \
         WHERE lock_key = $1 FOR UPDATE SKIP LOCKED"
    )
}

/// The isolation level of the user's session.
const ISOLATION: &str = "/*M!100300 @@tx_isolation*//*!80000 @@transaction_isolation*/";

/// `$1` key, `$2` lease, `$3` owner, `$4` holder, `$5` the [name](super::session::Session::name) of a session of the
/// store's, as text. Four statements, for one message. They return one row: a word, as above. Variables of the
/// session carry what each has found to the next.
///
/// - A plain read shows whether the row can be taken. It needs `SELECT … INTO`: in a `SET` it would lock. Under
///   SERIALIZABLE it would lock and wait, so nothing is read there. `MIN` makes one row of none, which clears the
///   variables.
/// - Only then is the row locked, by its key alone, so that a row that is skipped differs from one that has changed
///   since. Without a key the statement must be impossible before it reads: a key of NULL locks the gap before the
///   first row, which keeps out inserts. It waits for nothing, so its start is the time.
/// - The row is written if it is the one that the transaction sees: under REPEATABLE READ that may be an old one. A
///   lease and its token are never in two rows.
/// - `ROW_COUNT` is that of the write.
pub(super) fn take(table: &str) -> String {
    let now = "@dblock_now";
    format!(
        "SELECT MIN(IF(reentrant_count = 0 AND fence_ceiling < {CLOCK}, lock_key, NULL)), MIN(lease_id), \
             MIN(fence_token), MIN(fence_ceiling), MIN(reentrant_count), NULL \
         INTO @dblock_key, @dblock_lease, @dblock_token, @dblock_ceiling, @dblock_count, @dblock_locked \
         FROM {table} WHERE lock_key = $1 AND {ISOLATION} <> 'SERIALIZABLE';\
         SELECT lock_key, {CLOCK} INTO @dblock_locked, {now} FROM {table} FORCE INDEX (PRIMARY) \
         WHERE @dblock_key IS NOT NULL AND lock_key = @dblock_key FOR UPDATE SKIP LOCKED;\
         UPDATE {table} SET lock_owner = UNHEX($3), expire_at = {now}, lease_id = {LEASE}, fence_token = {now}, \
             fence_ceiling = {now}, acquired_at = {now}, holder = $4, revoked = FALSE, {NO_SUCCESSOR} \
         WHERE @dblock_locked IS NOT NULL AND lock_key = @dblock_locked AND lease_id = @dblock_lease \
             AND fence_token = @dblock_token AND reentrant_count = 0 AND fence_ceiling < {now};\
         SELECT CASE WHEN ROW_COUNT() > 0 THEN CONCAT('{TAKEN} ', {now}, ' ', IS_USED_LOCK($5) IS NOT NULL) \
             WHEN @dblock_locked IS NOT NULL THEN '{LOCKED}' WHEN @dblock_key IS NOT NULL THEN '{SKIPPED}' \
             WHEN @dblock_count > 0 THEN '{HELD}' WHEN @dblock_count IS NULL THEN '{ABSENT}' \
             ELSE CONCAT('{AHEAD} ', GREATEST(@dblock_ceiling - {CLOCK} + 1, 1)) END"
    )
}

/// `$1` the [name](super::session::Session::name) of a session. Returns 1 if it is on this server, or 0.
pub(super) const IS_HERE: &str = "SELECT CAST(IS_USED_LOCK($1) IS NOT NULL AS CHAR)";

/// The attempt of `$2` token, `$3` attempts, as text.
#[cfg(feature = "run_once")]
const ATTEMPT: &str =
    "state = 'processing' AND fence_token = CAST($2 AS SIGNED) AND attempts = CAST($3 AS SIGNED)";

/// The success of an attempt. `$1` key, `$2` token, `$3` attempts, `$4` result, `$5` keep, as text. A row that others have
/// locked is not written. LIMIT keeps the table within from being merged with the one that is written.
#[cfg(feature = "run_once")]
pub(super) fn complete_in(records: &str) -> String {
    format!(
        "UPDATE (SELECT record_key AS locked_key FROM {records} WHERE record_key = $1 LIMIT 1 FOR UPDATE SKIP LOCKED) locked \
             STRAIGHT_JOIN {records} written FORCE INDEX (PRIMARY) ON record_key = locked_key \
         SET state = 'succeeded', result = $4, error = NULL, finished_at = {CLOCK}, \
             keep_until = {CLOCK} + CAST($5 AS SIGNED) \
         WHERE {ATTEMPT}"
    )
}

/// `$1` key, `$2` token, `$3` attempts, as text. A plain read could wait under SERIALIZABLE.
#[cfg(feature = "run_once")]
pub(super) fn is_another_attempt(records: &str) -> String {
    format!("SELECT state FROM {records} WHERE record_key = $1 AND NOT ({ATTEMPT}) {FOR_SHARE} SKIP LOCKED")
}

/// The keys for `IN (…)`; empty if there are none.
pub(super) fn key_list<'a>(keys: impl Iterator<Item = &'a Key>) -> String {
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
