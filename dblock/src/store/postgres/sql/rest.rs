//! The statements of operators, of a purge and of the fence check.

use super::{NO_SUCCESSOR, NOW, tell_freed};
use crate::store::sql_row::COLUMNS;

/// Parameters: prefix, held only, limit.
pub(super) fn inspect(table: &str) -> String {
    format!(
        "WITH clock AS MATERIALIZED (SELECT {NOW} AS now)
SELECT {COLUMNS}, clock.now
FROM {table} t, clock
WHERE t.lock_key >= $1 AND starts_with(t.lock_key, $1)
    AND (NOT $2 OR (t.reentrant_count > 0 AND t.expire_at > clock.now))
ORDER BY t.lock_key LIMIT $3"
    )
}

/// Parameters: key. Returns a row if the key was held. It may wait for the row, so each check reads the clock.
pub(super) fn revoke(table: &str) -> String {
    format!(
        "UPDATE {table} SET revoked = true
WHERE lock_key = $1 AND reentrant_count > 0 AND expire_at > {NOW} RETURNING true"
    )
}

/// Parameters: key, fresh lease. Returns a row if the key was held.
pub(super) fn force_release(table: &str) -> String {
    let tell = tell_freed(table, "t.wanted_until > l.now");
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT lock_key, expire_at FROM {table} WHERE lock_key = $1 AND reentrant_count > 0 FOR UPDATE
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
)
UPDATE {table} t SET reentrant_count = 0, lease_id = $2, {NO_SUCCESSOR} FROM timed l
WHERE t.lock_key = l.lock_key AND l.expire_at > l.now RETURNING true, {tell}"
    )
}

/// Parameters: key to start after, limit, idle. Returns one row: how many rows were looked at, the key of the
/// last one, and how many were deleted.
///
/// Waits for nothing. A row is checked once more in the version that is locked, so one that was used after
/// the snapshot stays. It reads a range of the primary key, even where the planner's switches of our sessions
/// could not be set.
pub(super) fn purge(table: &str) -> String {
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

/// Parameters: key, lease, token, idle limit in ms or NULL. Returns what is left of the lease if it is still held. It
/// may wait for the row, so the clock is read after that. The limit applies to the transaction from then on, unless it
/// has a lower one.
///
/// The row has NULL when the transaction's snapshot has no row of the key, because a newer one would not be seen. A row
/// that has changed since the snapshot is a serialization error.
pub(in super::super) fn verify(table: &str) -> String {
    let [eq, gt, minus] = ["=", ">", "-"].map(operator);
    let limited = idle_limit();
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT lease_id, fence_token, reentrant_count, expire_at FROM {table} WHERE lock_key {eq} $1 FOR SHARE
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM locked
)
SELECT expire_at {minus} now, {limited} FROM timed
WHERE lease_id {eq} $2 AND fence_token {eq} $3 AND reentrant_count {gt} 0 AND expire_at {gt} now
UNION ALL
SELECT NULL, NULL
WHERE NOT EXISTS (SELECT FROM timed)
    -- READ COMMITTED and READ UNCOMMITTED, which is the same, see what is there.
    AND NOT pg_catalog.starts_with(pg_catalog.current_setting('transaction_isolation'), 'read')"
    )
}

/// Parameters: as [`verify`]. A row with true if the row is free in this transaction, with false if it is so below a
/// savepoint only; with NULL as there. The commit wakes the waiters of the key.
pub(in super::super) fn release_in(table: &str) -> String {
    let [eq, gt] = ["=", ">"].map(operator);
    let limited = idle_limit();
    let tell = tell_freed(table, "true");
    format!(
        "WITH locked AS MATERIALIZED (
    -- A row that has changed since the snapshot is a serialization error here, whatever the change.
    SELECT true AS found FROM {table} WHERE lock_key {eq} $1 FOR UPDATE
), freed AS (
    UPDATE {table} t SET reentrant_count = 0, {NO_SUCCESSOR}
    WHERE (SELECT found FROM locked) AND t.lock_key {eq} $1 AND t.lease_id {eq} $2 AND t.fence_token {eq} $3 AND t.reentrant_count {gt} 0
        AND t.expire_at {gt} {NOW}
    RETURNING t.xmin {eq} pg_catalog.pg_current_xact_id()::pg_catalog.xid AS whole, {tell} AS told, {limited} AS limited
)
SELECT whole, told, limited FROM freed
UNION ALL
SELECT NULL, NULL, NULL
WHERE NOT EXISTS (SELECT FROM {table} WHERE lock_key {eq} $1)
    AND NOT pg_catalog.starts_with(pg_catalog.current_setting('transaction_isolation'), 'read')"
    )
}

/// In a user's session, whose `search_path` may lead to other operators of the name.
fn operator(name: &str) -> String {
    format!("OPERATOR(pg_catalog.{name})")
}

/// Lets the transaction idle for $4 ms at most, unless its limit is lower already.
fn idle_limit() -> String {
    let [eq, gt, times] = ["=", ">", "*"].map(operator);
    let name = "'idle_in_transaction_session_timeout'";
    let current = format!("pg_catalog.current_setting({name})::pg_catalog.interval");
    let zero = "'0'::pg_catalog.interval";
    let limit = format!("('1 ms'::pg_catalog.interval {times} $4::double precision)");
    format!(
        "CASE WHEN {current} {eq} {zero} OR {current} {gt} {limit}
    THEN pg_catalog.set_config({name}, $4::pg_catalog.text, true) END"
    )
}
