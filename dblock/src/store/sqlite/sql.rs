//! The SQL text of the store, written once for its table.
//!
//! Parameters are `$N`, not `?N`: several statements of a text share them, and if a statement leaves out a
//! `?N`, sqlx fills the gap by position and counts the later ones wrongly.
//!
//! Every statement reads the clock after it has waited for the write lock, even without a transaction around
//! it: SQLite begins the write before it computes anything.
//!
//! An acquire, an extend and a release have a statement for the usual case. In any other case it changes
//! nothing and returns no row. Then the rules decide, while [`BEGIN`] keeps others from writing.

mod record;

use std::sync::Arc;

pub(super) use self::record::RecordStatements;
#[cfg(feature = "run_once")]
pub(super) use self::record::complete_in;

use crate::store::sql_row::{COLUMNS, NOT_SHARED, SHARED, shared_if_there};
use crate::store::table::TableName;

/// µs since the Unix epoch. The clock has ms, which floating point holds only approximately, so it is rounded
/// first. It is the same throughout a statement.
const NOW: &str = "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)";

pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(super) const COMMIT: &str = "COMMIT";

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) take: Arc<str>,
    pub(super) extend: Arc<str>,
    pub(super) free: Arc<str>,
    pub(super) read: Arc<str>,
    pub(super) read_shared: Arc<str>,
    pub(super) write: Arc<str>,
    pub(super) write_shared: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) force_release: Arc<str>,
    pub(super) inspect: Arc<str>,
    pub(super) inspect_urgent: Arc<str>,
    pub(super) idle: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) end: Arc<str>,
    pub(super) records: RecordStatements,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let version = table.quoted_version('"');
        let records = RecordStatements::new(&table.quoted_record('"'), &table.quoted('"'));
        let table = &table.quoted('"');
        Self {
            take: take(table).into(),
            extend: extend(table).into(),
            free: free(table).into(),
            read: read(table, "").into(),
            read_shared: read(table, &format!(", {SHARED}")).into(),
            write: write(table, COLUMNS).into(),
            write_shared: write(table, &format!("{COLUMNS}, shared")).into(),
            revoke: revoke(table).into(),
            force_release: force_release(table).into(),
            inspect: inspect(table).into(),
            inspect_urgent: inspect_urgent(table).into(),
            idle: idle_rows(table).into(),
            purge: purge(table).into(),
            end: end(table).into(),
            records,
            // The first one fails if the lock table is missing, or is somebody else's.
            version: format!(
                "SELECT lock_key, fence_ceiling FROM {table} LIMIT 0; \
                 SELECT version, min_client FROM {version} WHERE id = 1"
            )
            .into(),
        }
    }
}

fn held() -> String {
    format!("reentrant_count > 0 AND expire_at > {NOW}")
}

/// $1 key, $2 lease, $3 owner, $4 ttl, $5 holder, $6 spare tokens.
///
/// Takes a key that is absent or free. It reads the clock once: `acquired_at` is now. Its limit on tokens is
/// far below the last one.
fn take(table: &str) -> String {
    format!(
        "INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
             fence_ceiling, wanted_until, acquired_at, holder, revoked) \
         VALUES ($1, $3, 1, {NOW} + $4, $2, {NOW}, {NOW} + $6, 0, {NOW}, $5, 0) \
         ON CONFLICT (lock_key) DO UPDATE SET lock_owner = excluded.lock_owner, reentrant_count = 1, \
             expire_at = excluded.expire_at, lease_id = excluded.lease_id, \
             fence_token = max(fence_ceiling + 1, excluded.acquired_at), \
             fence_ceiling = max(fence_ceiling + 1, excluded.acquired_at) + $6, \
             acquired_at = excluded.acquired_at, holder = excluded.holder, revoked = 0 \
         WHERE lease_id <> excluded.lease_id AND reentrant_count = 0 AND next_lease IS NULL \
             AND fence_ceiling < 9000000000000000000 \
         RETURNING fence_token, expire_at - acquired_at, wanted_until > acquired_at"
    )
}

/// $1 key, $2 lease, $3 count, $4 ttl; after a local hand-over its $5 owner, $6 holder and $7 token,
/// otherwise NULL. Covers every case: no row means that the lease is lost.
fn extend(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = max($3, 1), lock_owner = iif($7 >= fence_token, $5, lock_owner), \
             holder = iif($7 >= fence_token, $6, holder), \
             fence_token = max(coalesce($7, fence_token), fence_token), \
             fence_ceiling = iif($7 > fence_ceiling, \
                 $7 + min(fence_ceiling - fence_token, 9223372036854775807 - $7), fence_ceiling), \
             expire_at = iif(revoked, expire_at, max(iif($3 > 0, expire_at, 0), {NOW} + $4)) \
         WHERE lock_key = $1 AND lease_id = $2 AND {held} \
         RETURNING expire_at - {NOW}, revoked, wanted_until > {NOW}",
        held = held()
    )
}

/// $1 key, $2 lease. Frees a row that names no successor.
fn free(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = 0 \
         WHERE lock_key = $1 AND lease_id = $2 AND next_lease IS NULL AND {held} \
         RETURNING 1",
        held = held()
    )
}

/// $1 key, $2 lease. Frees a row that the lease holds, whether it names a successor or not.
fn end(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = 0, next_lease = NULL, next_owner = NULL, next_holder = NULL, \
             next_ttl = NULL, next_spare = NULL, next_since = NULL, next_until = NULL \
         WHERE lock_key = $1 AND lease_id = $2 AND {held}",
        held = held()
    )
}

/// $1 key. The row, or NULL in all columns, the clock, and further columns.
fn read(table: &str, more: &str) -> String {
    format!("SELECT {COLUMNS}, {NOW}{more} FROM (SELECT 1) LEFT JOIN {table} ON lock_key = $1")
}

/// Writes these columns of a row, in their order, the key first. The other columns of the row stay.
fn write(table: &str, columns: &str) -> String {
    let names = || columns.split(", ");
    let values: Vec<_> = (1..=names().count()).map(|n| format!("${n}")).collect();
    let changes: Vec<_> = names()
        .skip(1)
        .map(|name| format!("{name} = excluded.{name}"))
        .collect();
    format!(
        "INSERT INTO {table} ({columns}) VALUES ({}) ON CONFLICT (lock_key) DO UPDATE SET {}",
        values.join(", "),
        changes.join(", ")
    )
}

/// $1 key.
fn revoke(table: &str) -> String {
    let held = held();
    format!("UPDATE {table} SET revoked = 1 WHERE lock_key = $1 AND {held} RETURNING 1")
}

/// $1 key, $2 fresh lease.
fn force_release(table: &str) -> String {
    let held = held();
    format!(
        "UPDATE {table} SET reentrant_count = 0, lease_id = $2, next_lease = NULL, next_owner = NULL, \
             next_holder = NULL, next_ttl = NULL, next_spare = NULL, next_since = NULL, next_until = NULL \
         WHERE lock_key = $1 AND {held} RETURNING 1"
    )
}

/// $1 the key to begin at, $2 prefix, $3 the key to start after or NULL, $4 held only, $5 limit. Compares
/// bytes: LIKE and GLOB would see wildcards in the prefix.
fn inspect(table: &str) -> String {
    format!(
        "SELECT {COLUMNS}, {NOW}, {shared} FROM {table} AS t, {NOT_SHARED} \
         WHERE lock_key >= $1 AND {prefix} AND ($3 IS NULL OR lock_key > $3) AND (NOT $4 OR {held}) \
         ORDER BY lock_key LIMIT $5",
        shared = shared_if_there(table),
        prefix = has_prefix("$2"),
        held = held()
    )
}

/// $1 prefix, $2 held only, $3 limit; $4 rank, $5 time and $6 key to start after, or NULL. It sorts all rows
/// of the prefix.
fn inspect_urgent(table: &str) -> String {
    format!(
        "SELECT {COLUMNS}, {NOW}, {shared} FROM (SELECT *, CASE WHEN NOT ({held}) THEN 2 \
             WHEN wanted_until > {NOW} OR next_until > {NOW} THEN 0 ELSE 1 END AS urgency \
             FROM {table} WHERE lock_key >= $1 AND {prefix}) AS t, {NOT_SHARED} \
         WHERE (NOT $2 OR urgency < 2) AND ($4 IS NULL OR (urgency, acquired_at, lock_key) > ($4, $5, $6)) \
         ORDER BY urgency, acquired_at, lock_key LIMIT $3",
        shared = shared_if_there(table),
        prefix = has_prefix("$1"),
        held = held()
    )
}

fn has_prefix(prefix: &str) -> String {
    format!("substr(CAST(lock_key AS BLOB), 1, octet_length({prefix})) = CAST({prefix} AS BLOB)")
}

/// Nobody has used the row for `idle`: it is not held, nobody waits, and the clock is above the ceiling.
fn is_idle(idle: &str) -> String {
    format!("max(expire_at, wanted_until, fence_ceiling) <= {NOW} - {idle}")
}

/// $1 the key to start after, $2 idle, $3 limit. Returns how many rows there are, the last one's key, and how
/// many of them are idle. Without rows the key and the number of idle ones are NULL.
fn idle_rows(table: &str) -> String {
    format!(
        "SELECT count(*), max(lock_key), sum(idle) FROM \
         (SELECT lock_key, {idle} AS idle FROM {table} WHERE lock_key > $1 ORDER BY lock_key LIMIT $3)",
        idle = is_idle("$2")
    )
}

/// $1 the key to start after, $2 idle, $3 the last key. Checks the rows again, now that nobody else writes.
fn purge(table: &str) -> String {
    format!(
        "DELETE FROM {table} WHERE lock_key > $1 AND lock_key <= $3 AND {idle}",
        idle = is_idle("$2")
    )
}

/// The user's driver sends text only.
const LEASE: &str = "unhex($2)";
const TOKEN: &str = "CAST($3 AS INTEGER)";

/// $1 key, $2 lease, $3 fence token, as text; returns what is left of the lease. The statement must write:
/// then a stale snapshot fails. It writes the token, because the row may not have it yet after a local
/// hand-over.
pub(super) fn verify(table: &str) -> String {
    format!(
        "UPDATE {table} SET fence_token = {TOKEN} \
         WHERE lock_key = $1 AND lease_id = {LEASE} AND {TOKEN} BETWEEN fence_token AND fence_ceiling AND {held} \
         RETURNING CAST(expire_at - {NOW} AS TEXT)",
        held = held()
    )
}

/// Parameters: as [`verify`]. Frees the row with the transaction. It writes the token for the same reason.
pub(super) fn release_in(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = 0, fence_token = {TOKEN}, next_lease = NULL, next_owner = NULL, \
         next_holder = NULL, next_ttl = NULL, next_spare = NULL, next_since = NULL, next_until = NULL \
         WHERE lock_key = $1 AND lease_id = {LEASE} AND {TOKEN} BETWEEN fence_token AND fence_ceiling AND {held}",
        held = held()
    )
}

/// Parameters: as [`verify`]. Returns a row if it is released by the lease.
pub(super) fn reads_release(table: &str) -> String {
    format!(
        "SELECT 'released' FROM {table} \
         WHERE lock_key = $1 AND lease_id = {LEASE} AND fence_token = {TOKEN} AND reentrant_count = 0"
    )
}
