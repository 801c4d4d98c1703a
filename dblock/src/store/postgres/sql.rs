//! The SQL text of the PostgreSQL store.
//!
//! # Why a statement gives one right answer to each request
//! The parts of a statement share one snapshot. Rows are found in it, then locked with `SKIP LOCKED` in
//! their newest version: whoever changed a row in between has committed, or the row is skipped. What
//! `locked` returns is therefore the present state, and nobody else changes it until the statement ends.
//! The clock is read after that, row by row. The `UPDATE` finds the same rows by key in the snapshot and
//! follows them to the locked version, which READ COMMITTED does for an `UPDATE` whose row has changed.
//! In a stricter isolation level both steps fail with a serialization error instead.
//!
//! A grant is only ever read from what `INSERT` and `UPDATE` returned. A request that no part answers is
//! one whose row was locked, or came or went since the snapshot: `Skipped`.
//!
//! # Why there is no deadlock
//! Only the `INSERT` can wait: for another one of the same key, or for an update of a row that is newer
//! than the snapshot. It runs in key order, and before the `UPDATE` of the same statement, which has all
//! its locks already. So a statement that others wait for never waits for them.

use std::sync::Arc;

use super::sql_one;
use crate::store::table::TableName;

/// µs since the Unix epoch. `now()` would be the start of the transaction.
///
/// `date_part` is in double precision: each µs up to the year 2106 comes out exactly, because the errors of
/// the quotient and of the product stay below half a µs together. `extract` would be slow, as a `numeric`.
pub(super) const NOW: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// The channel of the table's wake-ups: the same under each of the table's names, and no other table's.
fn channel(table: &str) -> String {
    format!("'dblock_' || '{table}'::regclass::oid")
}

/// Whether somebody waits for a key that has just been released, who is then notified when the statement
/// commits. Only then: notifications make commits wait for one another.
pub(super) fn wakes(table: &str, wanted: &str, key: &str) -> String {
    let channel = channel(table);
    format!("CASE WHEN {wanted} THEN pg_notify({channel}, {key}) IS NOT NULL ELSE false END")
}

/// The statements of an action.
#[derive(Debug)]
pub(super) struct Pair {
    /// One row with plain parameters, in the state that it usually has. It answers and changes nothing
    /// when the row is in another one; `many` is asked then. Half the work of `many` for the server.
    pub(super) one: Arc<str>,
    /// Any number of rows, with arrays, in every state.
    pub(super) many: Arc<str>,
}

/// Every statement for one table.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) acquire: Pair,
    pub(super) extend: Pair,
    pub(super) release: Pair,
    pub(super) inspect: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) force_release: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) channel: Arc<str>,
    pub(super) version: Arc<str>,
}

impl Sql {
    pub(super) fn new(table: &TableName) -> Self {
        let (version_table, table) = (table.quoted_version('"'), table.quoted('"'));
        Self {
            acquire: Pair {
                one: sql_one::acquire(&table).into(),
                many: many(
                    &[
                        ("lock_key", "text"),
                        ("lease_id", "uuid"),
                        ("lock_owner", "uuid"),
                        ("ttl", "bigint"),
                        ("holder", "text"),
                        ("wanted_for", "bigint"),
                        ("spare_tokens", "bigint"),
                    ],
                    &acquire(&table),
                ),
            },
            extend: Pair {
                one: sql_one::extend(&table).into(),
                many: many(
                    &[
                        ("lock_key", "text"),
                        ("lease_id", "uuid"),
                        ("count", "integer"),
                        ("ttl", "bigint"),
                        ("new_owner", "uuid"),
                        ("new_holder", "text"),
                        ("new_token", "bigint"),
                    ],
                    &extend(&table),
                ),
            },
            release: Pair {
                one: sql_one::release(&table).into(),
                many: many(&[("lock_key", "text"), ("lease_id", "uuid")], &release(&table)),
            },
            inspect: inspect(&table).into(),
            revoke: revoke(&table).into(),
            force_release: force_release(&table).into(),
            purge: purge(&table).into(),
            channel: format!("SELECT {}", channel(&table)).into(),
            // The join finds a missing lock table.
            version: format!(
                "SELECT v.version, v.min_client FROM {version_table} v \
                 LEFT JOIN (SELECT FROM {table} LIMIT 0) t ON true"
            )
            .into(),
        }
    }
}

/// Puts a CTE `requests` before `body`: one row of `columns` per request, from arrays.
fn many(columns: &[(&str, &str)], body: &str) -> Arc<str> {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let arrays: Vec<_> = columns
        .iter()
        .zip(1..)
        .map(|((_, kind), i)| format!("${i}::{kind}[]"))
        .collect();
    let (names, arrays) = (names.join(", "), arrays.join(", "));
    format!("WITH requests AS MATERIALIZED (SELECT * FROM unnest({arrays}) u({names})), {body}").into()
}

/// Answers: key, outcome, fence token, remaining, wanted, and owner, holder and token of the occupant.
fn acquire(table: &str) -> String {
    format!(
        r#"
locked AS MATERIALIZED (
    SELECT r.lock_key, r.lease_id = t.lease_id AS mine, r.wanted_for, t.reentrant_count, t.expire_at,
        t.fence_token, t.fence_ceiling, t.wanted_until, t.lock_owner, t.holder,
        r.lease_id AS new_lease, r.lock_owner AS new_owner, r.holder AS new_holder, r.ttl, r.spare_tokens
    FROM requests r JOIN {table} t ON t.lock_key = r.lock_key
    ORDER BY t.lock_key FOR UPDATE OF t SKIP LOCKED
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
), judged AS MATERIALIZED (
    SELECT *,
        NOT mine AND NOT (reentrant_count > 0 AND expire_at > now) AS takes,
        mine AND reentrant_count > 1 AND expire_at > now AS repeats,
        -- Only when less than half of the wish is left, so that pollers do not write each time.
        NOT mine AND reentrant_count > 0 AND expire_at > now
            AND coalesce(wanted_until < now + wanted_for / 2, false) AS wants
    FROM timed
), inserted AS (
    INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
        fence_ceiling, wanted_until, acquired_at, holder, revoked)
    SELECT lock_key, lock_owner, 1, now + ttl, lease_id, now, now + spare_tokens, 0, now, holder, false
    FROM (
        SELECT r.*, {NOW} AS now FROM requests r
        WHERE NOT EXISTS (SELECT FROM {table} t WHERE t.lock_key = r.lock_key)
        ORDER BY r.lock_key COLLATE "C"
    ) fresh
    ON CONFLICT (lock_key) DO NOTHING
    RETURNING lock_key, fence_token, expire_at - acquired_at AS remaining
), written AS (
    UPDATE {table} t SET
        lock_owner = CASE WHEN j.takes THEN j.new_owner ELSE t.lock_owner END,
        lease_id = CASE WHEN j.takes THEN j.new_lease ELSE t.lease_id END,
        holder = CASE WHEN j.takes THEN j.new_holder ELSE t.holder END,
        reentrant_count = CASE WHEN j.wants THEN t.reentrant_count ELSE 1 END,
        fence_token = CASE WHEN j.takes THEN greatest(j.fence_ceiling + 1, j.now) ELSE t.fence_token END,
        fence_ceiling = CASE WHEN j.takes THEN greatest(j.fence_ceiling + 1, j.now) + j.spare_tokens
            ELSE t.fence_ceiling END,
        acquired_at = CASE WHEN j.takes THEN j.now ELSE t.acquired_at END,
        expire_at = CASE WHEN j.takes THEN j.now + j.ttl ELSE t.expire_at END,
        revoked = t.revoked AND NOT j.takes,
        wanted_until = CASE WHEN j.wants THEN greatest(t.wanted_until, j.now + j.wanted_for)
            ELSE t.wanted_until END
    -- The count makes the inserts come first.
    FROM judged j, (SELECT count(*) FROM inserted) before
    WHERE t.lock_key = j.lock_key AND (j.takes OR j.repeats OR j.wants)
    RETURNING j.lock_key,
        CASE WHEN j.wants THEN 'busy' WHEN j.takes AND j.reentrant_count > 0 THEN 'taken over'
            ELSE 'granted' END,
        t.fence_token, t.expire_at - j.now, t.wanted_until > j.now, j.lock_owner, j.holder, j.fence_token
)
SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN NOT mine THEN 'busy' WHEN reentrant_count > 0 AND expire_at > now THEN 'granted'
        ELSE 'lost' END,
    fence_token, expire_at - now, wanted_until > now, lock_owner, holder, fence_token
FROM judged WHERE NOT (takes OR repeats OR wants)
UNION ALL
SELECT lock_key, 'granted', fence_token, remaining, false, NULL, NULL, NULL FROM inserted
UNION ALL
-- Rows that others have locked: busy if the snapshot shows a holder and already carries the wish.
SELECT lock_key, 'busy', fence_token, expire_at - now, true, lock_owner, holder, fence_token
FROM (
    SELECT r.lock_key, r.wanted_for, t.fence_token, t.expire_at, t.wanted_until, t.lock_owner, t.holder, {NOW} AS now
    FROM requests r JOIN {table} t ON t.lock_key = r.lock_key
    WHERE r.lock_key NOT IN (SELECT lock_key FROM locked) AND t.reentrant_count > 0 AND t.lease_id <> r.lease_id
) skipped
WHERE expire_at > now AND coalesce(wanted_until >= now + wanted_for / 2, true)"#
    )
}

/// The part that extend and release share: the rows of the leases, locked, and then the clock.
fn locked(table: &str, columns: &str) -> String {
    format!(
        "
locked AS MATERIALIZED (
    SELECT r.*, t.lease_id = r.lease_id AS mine, t.reentrant_count, t.expire_at, t.wanted_until{columns}
    FROM requests r JOIN {table} t ON t.lock_key = r.lock_key
    ORDER BY t.lock_key FOR UPDATE OF t SKIP LOCKED
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
)"
    )
}

/// Answers: key, outcome, remaining, revoked, wanted.
fn extend(table: &str) -> String {
    let locked = locked(table, ", t.revoked");
    format!(
        "{locked}, written AS (
    UPDATE {table} t SET
        reentrant_count = l.count,
        lock_owner = coalesce(l.new_owner, t.lock_owner),
        holder = coalesce(l.new_holder, t.holder),
        fence_token = coalesce(l.new_token, t.fence_token),
        expire_at = CASE WHEN l.revoked THEN t.expire_at ELSE greatest(t.expire_at, l.now + l.ttl) END
    FROM timed l
    WHERE t.lock_key = l.lock_key AND l.mine AND l.reentrant_count > 0 AND l.expire_at > l.now
    RETURNING l.lock_key, 'extended', t.expire_at - l.now, t.revoked, t.wanted_until > l.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM timed
WHERE NOT (mine AND reentrant_count > 0 AND expire_at > now)
UNION ALL
SELECT r.lock_key, 'lost', 0, false, false FROM requests r
WHERE NOT EXISTS (SELECT FROM {table} t WHERE t.lock_key = r.lock_key)"
    )
}

/// Answers: key, outcome, wanted.
fn release(table: &str) -> String {
    let (locked, wakes) = (
        locked(table, ""),
        wakes(table, "t.wanted_until > l.now", "t.lock_key"),
    );
    format!(
        "{locked}, written AS (
    UPDATE {table} t SET reentrant_count = 0
    FROM timed l
    WHERE t.lock_key = l.lock_key AND l.mine AND l.reentrant_count > 0 AND l.expire_at > l.now
    RETURNING l.lock_key, 'freed', {wakes}
)
SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN mine AND reentrant_count = 0 THEN 'free' ELSE 'lost' END, wanted_until > now FROM timed
WHERE NOT (mine AND reentrant_count > 0 AND expire_at > now)
UNION ALL
SELECT r.lock_key, 'lost', false FROM requests r
WHERE NOT EXISTS (SELECT FROM {table} t WHERE t.lock_key = r.lock_key)"
    )
}

/// Parameters: prefix, held only, limit.
fn inspect(table: &str) -> String {
    format!(
        "WITH clock AS MATERIALIZED (SELECT {NOW} AS now)
SELECT t.lock_key, t.lock_owner, t.reentrant_count, t.expire_at, t.lease_id, t.fence_token, t.fence_ceiling,
    t.wanted_until, t.acquired_at, t.holder, t.revoked, clock.now
FROM {table} t, clock
WHERE t.lock_key >= $1 AND starts_with(t.lock_key, $1)
    AND (NOT $2 OR (t.reentrant_count > 0 AND t.expire_at > clock.now))
ORDER BY t.lock_key LIMIT $3"
    )
}

/// Parameters: key. A row for a held key. It may wait for the row, so the clock is read with each check.
fn revoke(table: &str) -> String {
    format!(
        "UPDATE {table} SET revoked = true
WHERE lock_key = $1 AND reentrant_count > 0 AND expire_at > {NOW} RETURNING true"
    )
}

/// Parameters: key, fresh lease. A row that says whether the lease still held.
fn force_release(table: &str) -> String {
    let wakes = wakes(table, "t.wanted_until > l.now", "t.lock_key");
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT lock_key, expire_at FROM {table} WHERE lock_key = $1 AND reentrant_count > 0 FOR UPDATE
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
)
UPDATE {table} t SET reentrant_count = 0, lease_id = $2 FROM timed l WHERE t.lock_key = l.lock_key
RETURNING l.expire_at > l.now, {wakes}"
    )
}

/// Parameters: key to begin behind, limit, idle. A row: how many rows were looked at, the last one's key, and
/// how many were deleted.
///
/// Waits for nothing. A row is judged once more in the version that is locked: one that was used since the
/// snapshot stays. It reads a range of the primary key, also where the planner's switches of our sessions
/// could not be set.
fn purge(table: &str) -> String {
    format!(
        "WITH looked_at AS MATERIALIZED (
    SELECT lock_key FROM {table} WHERE lock_key > $1 ORDER BY lock_key LIMIT $2
), seen AS MATERIALIZED (
    SELECT count(*) AS rows, max(lock_key) AS last FROM looked_at
), gone AS (
    DELETE FROM {table} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {table}
        WHERE lock_key > $1 AND lock_key <= (SELECT last FROM seen)
            AND greatest(expire_at, wanted_until, fence_ceiling) <= {NOW} - $3
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT rows, last, (SELECT count(*) FROM gone) FROM seen"
    )
}

/// Parameters: key, lease, token. A row with what is left of the lease if it still holds. It may wait for
/// the row, so the clock is read after that.
pub(super) fn verify(table: &str) -> String {
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT lease_id, fence_token, reentrant_count, expire_at FROM {table} WHERE lock_key = $1 FOR SHARE
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
)
SELECT expire_at - now FROM timed
WHERE lease_id = $2 AND fence_token = $3 AND reentrant_count > 0 AND expire_at > now"
    )
}
