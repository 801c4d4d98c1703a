//! The SQL text of the store, written once for its table.
//!
//! Parameters are `$N`, not `?N`: a text has several statements that share them, and where one leaves out
//! a `?N`, sqlx fills the gap by position and counts the later ones wrongly.
//!
//! Texts of several statements run inside `BEGIN IMMEDIATE`, so that nobody else writes between two of them.
//! Every statement reads the clock after the wait for the write lock, also one without a transaction around
//! it: SQLite begins the write before it computes anything.

use std::sync::Arc;

use crate::store::table::TableName;

/// µs since the Unix epoch. The clock has ms, which a floating-point number holds only nearly: rounded
/// first, so that it is exact. Stays the same within one statement.
const NOW: &str = "(CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000)";

pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
pub(super) const COMMIT: &str = "COMMIT";

/// One action. What counts alone is how often and how much sqlx's worker thread is talked to.
#[derive(Debug)]
pub(super) struct Text {
    /// The usual case in one statement; it gives no row, and changes nothing, in any other case.
    pub(super) usual: Option<Arc<str>>,
    /// Every case, as a transaction of its own.
    pub(super) alone: Arc<str>,
    /// Every case, as part of an open transaction.
    pub(super) inside: Arc<str>,
}

impl Text {
    fn one(statement: String) -> Self {
        let text: Arc<str> = statement.into();
        Self {
            usual: None,
            alone: Arc::clone(&text),
            inside: text,
        }
    }

    fn many(usual: String, statements: String) -> Self {
        let alone = format!("{BEGIN}; {statements}; {COMMIT}").into();
        Self {
            usual: Some(usual.into()),
            alone,
            inside: statements.into(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Statements {
    pub(super) acquire: Text,
    pub(super) busy: Arc<str>,
    pub(super) extend: Text,
    pub(super) release: Text,
    pub(super) revoke: Text,
    pub(super) force_release: Text,
    pub(super) inspect: Arc<str>,
    pub(super) idle: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) version: Arc<str>,
}

impl Statements {
    pub(super) fn new(table: &TableName) -> Self {
        let version = table.quoted_version('"');
        let table = &table.quoted('"');
        Self {
            acquire: Text::many(grant(table, "reentrant_count = 0"), acquire(table)),
            busy: busy(table).into(),
            extend: Text::one(extend(table)),
            release: Text::many(free(table), release(table)),
            revoke: Text::one(format!(
                "UPDATE {table} SET revoked = 1 WHERE lock_key = $1 AND {held} RETURNING 1",
                held = held()
            )),
            force_release: Text::one(format!(
                "UPDATE {table} SET reentrant_count = 0, lease_id = $2 WHERE lock_key = $1 AND {held} RETURNING 1",
                held = held()
            )),
            inspect: inspect(table).into(),
            idle: idle_rows(table).into(),
            purge: purge(table).into(),
            version: format!("SELECT version, min_client FROM {version} WHERE id = 1").into(),
        }
    }
}

fn held() -> String {
    format!("reentrant_count > 0 AND expire_at > {NOW}")
}

/// The row says for long enough that somebody waits: written anew only when less than half of $6 is left, so
/// that polls seldom write.
fn is_wanted() -> String {
    format!("($6 IS NULL OR wanted_until >= {NOW} + $6 / 2)")
}

/// $1 key, $2 lease, $3 owner, $4 ttl, $5 holder, $6 `wanted_for` or NULL, $7 spare tokens.
///
/// Rows that begin with 0: the row as it was. Rows that begin with 1: the lease is held by $2 now.
fn acquire(table: &str) -> String {
    let held = held();
    format!(
        "{before}; \
         \
         UPDATE {table} SET reentrant_count = 1 WHERE lock_key = $1 AND lease_id = $2 AND {held} \
         RETURNING 1, fence_token, expire_at - {NOW}, wanted_until > {NOW}; \
         \
         {grant}; \
         \
         UPDATE {table} SET wanted_until = {NOW} + $6 \
         WHERE lock_key = $1 AND lease_id <> $2 AND {held} AND NOT {is_wanted}",
        is_wanted = is_wanted(),
        before = before(table),
        grant = grant(table, &format!("NOT ({held})"))
    )
}

/// The row as it was, for an acquire.
fn before(table: &str) -> String {
    format!(
        "SELECT 0, lease_id = $2, reentrant_count > 0, lock_owner, holder, fence_token, expire_at - {NOW} \
         FROM {table} WHERE lock_key = $1"
    )
}

/// The row if the lock is busy and nothing is to be written; otherwise no row. Parameters as in [`acquire`].
fn busy(table: &str) -> String {
    format!(
        "{before} AND lease_id <> $2 AND {held} AND {is_wanted}",
        is_wanted = is_wanted(),
        before = before(table),
        held = held()
    )
}

/// The part of an acquire that takes the lock, if the row is absent or `available`. It reads the clock once:
/// `acquired_at` is now.
fn grant(table: &str, available: &str) -> String {
    format!(
        "INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, \
             fence_ceiling, wanted_until, acquired_at, holder, revoked) \
         VALUES ($1, $3, 1, {NOW} + $4, $2, {NOW}, {NOW} + $7, 0, {NOW}, $5, 0) \
         ON CONFLICT (lock_key) DO UPDATE SET lock_owner = excluded.lock_owner, reentrant_count = 1, \
             expire_at = excluded.expire_at, lease_id = excluded.lease_id, \
             fence_token = max(fence_ceiling + 1, excluded.acquired_at), \
             fence_ceiling = max(fence_ceiling + 1, excluded.acquired_at) + $7, \
             acquired_at = excluded.acquired_at, holder = excluded.holder, revoked = 0 \
         WHERE lease_id <> excluded.lease_id AND {available} \
         RETURNING 1, fence_token, expire_at - acquired_at, wanted_until > acquired_at"
    )
}

/// $1 key, $2 lease, $3 count, $4 ttl; the successor's $5 owner, $6 holder and $7 token, or NULL.
fn extend(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = $3, lock_owner = iif($7 >= fence_token, $5, lock_owner), \
             holder = iif($7 >= fence_token, $6, holder), \
             fence_token = max(coalesce($7, fence_token), fence_token), \
             expire_at = iif(revoked, expire_at, max(expire_at, {NOW} + $4)) \
         WHERE lock_key = $1 AND lease_id = $2 AND {held} \
         RETURNING expire_at - {NOW}, revoked, wanted_until > {NOW}",
        held = held()
    )
}

/// $1 key, $2 lease. The first row tells: whether it was held until now, whether it is wanted.
fn release(table: &str) -> String {
    format!(
        "{free}; \
         \
         SELECT 0, wanted_until > {NOW} FROM {table} \
         WHERE lock_key = $1 AND lease_id = $2 AND reentrant_count = 0",
        free = free(table)
    )
}

/// The part of a release that frees the row.
fn free(table: &str) -> String {
    format!(
        "UPDATE {table} SET reentrant_count = 0 WHERE lock_key = $1 AND lease_id = $2 AND {held} \
         RETURNING 1, wanted_until > {NOW}",
        held = held()
    )
}

/// $1 prefix, $2 held only, $3 limit. Compares bytes: LIKE and GLOB would see wildcards in the prefix.
fn inspect(table: &str) -> String {
    format!(
        "SELECT lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling, \
             wanted_until, acquired_at, holder, revoked, {NOW} \
         FROM {table} \
         WHERE lock_key >= $1 AND substr(CAST(lock_key AS BLOB), 1, octet_length($1)) = CAST($1 AS BLOB) \
             AND (NOT $2 OR {held}) \
         ORDER BY lock_key LIMIT $3",
        held = held()
    )
}

/// Nobody has used the row for `idle`: not held, not wanted, and a token from the clock is above the ceiling.
fn is_idle(idle: &str) -> String {
    format!("max(expire_at, wanted_until, fence_ceiling) <= {NOW} - {idle}")
}

/// $1 the key before the first, $2 idle, $3 limit. How many rows there are, the last one's key, and how
/// many of them are idle. Without rows no key, and NULL.
fn idle_rows(table: &str) -> String {
    format!(
        "SELECT count(*), max(lock_key), sum(idle) FROM \
         (SELECT lock_key, {idle} AS idle FROM {table} WHERE lock_key > $1 ORDER BY lock_key LIMIT $3)",
        idle = is_idle("$2")
    )
}

/// $1 the key before the first, $2 idle, $3 the last key. Looks at the rows again, now that nobody else writes.
fn purge(table: &str) -> String {
    format!(
        "DELETE FROM {table} WHERE lock_key > $1 AND lock_key <= $3 AND {idle}",
        idle = is_idle("$2")
    )
}

/// $1 key, $2 lease, $3 fence token; what is left of the lease. What matters is that the statement writes. It
/// writes the token, for a row that is still behind a hand-over.
pub(super) fn verify(table: &str) -> String {
    format!(
        "UPDATE {table} SET fence_token = $3 \
         WHERE lock_key = $1 AND lease_id = $2 AND $3 BETWEEN fence_token AND fence_ceiling AND {held} \
         RETURNING expire_at - {NOW}",
        held = held()
    )
}
