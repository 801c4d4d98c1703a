//! The statements of operators, of a purge and of the fence check.

use std::time::Duration;

use super::{NO_SUCCESSOR, NOW, Notify, open, tell_freed};
use crate::store::fence::take::SKIPPED;
use crate::store::sql_row::{COLUMNS, NOT_SHARED, shared_if_there};

/// Parameters: the keys. Behind the clock is the table's [`identity`].
pub(super) fn rows(table: &str) -> String {
    let identity = identity("t.tableoid");
    let shared = shared_if_there(table);
    format!(
        "SELECT {COLUMNS}, {NOW}, {identity}, {shared} FROM {table} t, {NOT_SHARED} WHERE t.lock_key = ANY($1)"
    )
}

/// Which table on which server: of each answer that a transaction gives, and of each that the store's own sessions
/// give. The server's start tells it from a copy of it.
pub(super) fn identity(table_oid: &str) -> String {
    let times = operator("*");
    format!(
        "pg_catalog.concat({table_oid}, ' ', (pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())
        {times} 1000000::double precision)::bigint, ' ', pg_catalog.current_database())"
    )
}

/// Parameters: key. Behind the clock is [`open::transaction`].
pub(super) fn row(table: &str) -> String {
    let (with, transaction) = (open::with(), open::transaction("t"));
    let shared = shared_if_there(table);
    format!(
        "WITH {with}
SELECT {COLUMNS}, clock.now, {transaction}, {shared} FROM {table} t, clock, {NOT_SHARED} WHERE t.lock_key = $1"
    )
}

/// Parameters: the key to begin at, prefix, key to start after or NULL, held only, limit. Behind the clock is
/// [`open::transaction`].
pub(super) fn inspect(table: &str) -> String {
    let (with, transaction, maybe) = (open::with(), open::transaction("t"), open::may_be_locked("t"));
    let (kept, shared) = (open::is_kept(&transaction), shared_if_there(table));
    format!(
        "WITH {with}
SELECT {COLUMNS}, clock.now, {transaction}, {shared}
FROM {table} t, clock, {NOT_SHARED}
WHERE t.lock_key >= $1 AND starts_with(t.lock_key, $2) AND ($3 IS NULL OR t.lock_key > $3)
    AND (NOT $4 OR (t.reentrant_count > 0 AND t.expire_at > clock.now) OR ({maybe} AND {kept}))
ORDER BY t.lock_key LIMIT $5"
    )
}

/// Parameters: prefix, held only, limit; rank, time and key to start after, or NULL. It sorts all rows of the
/// prefix: each acquire would have to maintain an index. Behind the clock is [`open::transaction`].
///
/// Only what a rank needs is sorted, and a transaction is looked for once more in the rows that were chosen: a rank
/// that is made with `pg_xact_status` is computed apart from the sorting, which would copy whole rows.
pub(super) fn inspect_urgent(table: &str) -> String {
    let (with, transaction, maybe) = (open::with(), open::transaction("t"), open::may_be_locked("t"));
    let (kept, shared) = (open::is_kept(&transaction), shared_if_there(table));
    format!(
        "WITH {with}, chosen AS MATERIALIZED (
    SELECT * FROM (
        SELECT t.lock_key, t.acquired_at, CASE
            WHEN t.reentrant_count > 0 AND t.expire_at > clock.now THEN
                CASE WHEN t.wanted_until > clock.now OR t.next_until > clock.now THEN 0 ELSE 1 END
            WHEN {maybe} AND {kept} THEN
                CASE WHEN t.wanted_until > clock.now THEN 0 ELSE 1 END
            ELSE 2 END AS urgency
        FROM {table} t, clock
        WHERE t.lock_key >= $1 AND starts_with(t.lock_key, $1)
    ) ranked
    WHERE (NOT $2 OR urgency < 2) AND ($4 IS NULL OR (urgency, acquired_at, lock_key) > ($4, $5, $6))
    ORDER BY urgency, acquired_at, lock_key LIMIT $3
)
SELECT {qualified}, clock.now, {transaction}, {shared}
FROM chosen JOIN {table} t ON t.lock_key = chosen.lock_key, clock, {NOT_SHARED}
ORDER BY chosen.urgency, chosen.acquired_at, chosen.lock_key",
        qualified = qualified("t"),
    )
}

/// The columns of one table among several.
pub(super) fn qualified(table: &str) -> String {
    let columns: Vec<_> = COLUMNS
        .split(", ")
        .map(|name| format!("{table}.{name}"))
        .collect();
    columns.join(", ")
}

/// Parameters: key. Returns a row if the key was held. It may wait for the row, so each check reads the
/// clock.
pub(super) fn revoke(table: &str) -> String {
    format!(
        "UPDATE {table} SET revoked = true
WHERE lock_key = $1 AND reentrant_count > 0 AND expire_at > {NOW} RETURNING true"
    )
}

/// Parameters: key, fresh lease. Returns a row if the key was held.
pub(super) fn force_release(table: &str, notify: Notify) -> String {
    let tell = tell_freed(table, "t.wanted_until > l.now", notify);
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
/// Waits for nothing. A row is checked again in its locked version, so a row that was used after the snapshot
/// is not deleted. It reads a range of the primary key, even if our settings for the planner could not be made.
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

/// The answer of [`verify`] and [`release_in`] if the transaction's snapshot has no row of the key: a newer row
/// would not be seen. A row that has changed since the snapshot is a serialization error.
pub(in super::super) const NOT_IN_SNAPSHOT: &str = "not in the snapshot";
/// The answer of [`release_in`] when the row is free in this transaction. Its id follows.
pub(in super::super) const RELEASED_WHOLE: &str = "released ";
/// The answer of [`release_in`] when the row is free below a savepoint only.
pub(in super::super) const BELOW_SAVEPOINT: &str = "below a savepoint";

/// `$1` key, `$2` lease, `$3` token, as text, and so on for `count` keys. Returns for each lease that is
/// still held its number, what is left of it, and the transaction's id, or [`SKIPPED`]. The limit applies to the
/// transaction that has locked a row, from then on, unless it has a lower one.
pub(in super::super) fn verify(table: &str, idle_limit: Option<Duration>, count: usize) -> String {
    let [eq, gt, minus] = ["=", ">", "-"].map(operator);
    let (limited, snapshot) = (limit_idling(idle_limit), snapshot());
    let parts = (0..count).map(|at| {
        let [key, lease, token] = parameters(at);
        format!(
            "SELECT pg_catalog.concat('{at} ', answer) FROM (
WITH locked AS MATERIALIZED (
    SELECT lease_id, fence_token, reentrant_count, expire_at FROM {table} WHERE lock_key {eq} {key} FOR SHARE SKIP LOCKED
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now, {limited} AS limited FROM locked
)
SELECT pg_catalog.concat(expire_at {minus} now, ' ', pg_catalog.pg_current_xact_id()) FROM timed
WHERE lease_id {eq} {lease} AND fence_token {eq} {token} AND reentrant_count {gt} 0 AND expire_at {gt} now
UNION ALL
SELECT CASE WHEN held THEN '{SKIPPED}' ELSE '{NOT_IN_SNAPSHOT}' END FROM (
    SELECT (SELECT lease_id {eq} {lease} AND fence_token {eq} {token} AND reentrant_count {gt} 0 AND expire_at {gt} {NOW}
        FROM {table} WHERE lock_key {eq} {key}) AS held OFFSET 0
) seen WHERE NOT EXISTS (SELECT FROM timed) AND coalesce(held, {snapshot})
) AS part(answer)"
        )
    });
    parts.collect::<Vec<_>>().join("\nUNION ALL\n")
}

/// Marks a transaction with the number that follows.
pub(in super::super) const MARKS: &str = "SET LOCAL dblock.lease = ";

/// The mark of a transaction: empty without one, and after its end.
pub(in super::super) const MARK: &str =
    "SELECT coalesce(pg_catalog.current_setting('dblock.lease', true), '')";

/// `$1` key, `$2` lease, as text. If the row names the lease, returns the mark of the transaction, and has the row locked.
pub(in super::super) fn check_lease(table: &str, idle_limit: Option<Duration>) -> String {
    let [eq, gt] = ["=", ">"].map(operator);
    let limited = limit_idling(idle_limit);
    format!(
        "SELECT pg_catalog.concat(pg_catalog.current_setting('dblock.lease', true), pg_catalog.left({limited}, 0))
FROM {table} WHERE lock_key {eq} $1::pg_catalog.text AND lease_id {eq} $2::pg_catalog.text::pg_catalog.uuid
    AND reentrant_count {gt} 0 FOR SHARE"
    )
}

/// Parameters and answers: as [`verify`]. Frees the rows, and answers nothing for a lease that it does not
/// find, or whose row others have locked. The commit wakes those that waited before. A caller that comes while a row is locked cannot write that
/// it waits, and polls. To wake such callers too, every transaction would have to notify, and commits that
/// notify wait for one another.
pub(in super::super) fn release_in(table: &str, idle_limit: Option<Duration>, count: usize) -> String {
    let [eq, gt] = ["=", ">"].map(operator);
    let limited = limit_idling(idle_limit);
    let tell = tell_freed(table, &format!("t.wanted_until {gt} {NOW}"), Notify::Waiters);
    let asked = (0..count).map(|at| {
        let [key, lease, token] = parameters(at);
        format!("({at}, {key}, {lease}, {token})")
    });
    let asked = asked.collect::<Vec<_>>().join(", ");
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT t.ctid AS place, asked.at FROM (VALUES {asked}) AS asked(at, lock_key, lease_id, fence_token), {table} t
    WHERE t.lock_key {eq} asked.lock_key AND t.lease_id {eq} asked.lease_id AND t.fence_token {eq} asked.fence_token
        AND t.reentrant_count {gt} 0
    FOR UPDATE OF t SKIP LOCKED
)
UPDATE {table} t SET reentrant_count = 0, {NO_SUCCESSOR}
FROM locked WHERE t.ctid {eq} locked.place AND t.expire_at {gt} {NOW}
RETURNING pg_catalog.concat(locked.at, CASE WHEN t.xmin {eq} pg_catalog.pg_current_xact_id()::pg_catalog.xid
    THEN pg_catalog.concat(' {RELEASED_WHOLE}', pg_catalog.pg_current_xact_id()) ELSE ' {BELOW_SAVEPOINT}' END), {tell}, {limited}"
    )
}

/// Parameters: as [`verify`], of one key. Returns a row if this transaction itself has freed the row. The row
/// has the transaction's own id, because [`release_in`] is refused below a savepoint.
pub(in super::super) fn reads_release(table: &str) -> String {
    let eq = operator("=");
    let [key, lease, token] = parameters(0);
    format!(
        "SELECT 'released' FROM {table} t
WHERE t.lock_key {eq} {key} AND t.lease_id {eq} {lease} AND t.fence_token {eq} {token} AND t.reentrant_count {eq} 0
    AND t.xmin {eq} pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.xid"
    )
}

/// Key, lease and token of one key among several.
fn parameters(at: usize) -> [String; 3] {
    let first = 3 * at + 1;
    [
        format!("${first}::pg_catalog.text"),
        format!("${}::pg_catalog.text::pg_catalog.uuid", first + 1),
        format!("${}::pg_catalog.text::bigint", first + 2),
    ]
}

/// READ COMMITTED, and READ UNCOMMITTED, which is the same, have no older snapshot.
fn snapshot() -> &'static str {
    "NOT pg_catalog.starts_with(pg_catalog.current_setting('transaction_isolation'), 'read')"
}

/// For a user's session, whose `search_path` may lead to other operators of the name.
pub(super) fn operator(name: &str) -> String {
    format!("OPERATOR(pg_catalog.{name})")
}

/// Lets the transaction idle for `limit` at most, unless its limit is lower already. Returns text.
pub(super) fn limit_idling(limit: Option<Duration>) -> String {
    let Some(limit) = limit else {
        return "''".to_owned();
    };
    let [eq, gt] = ["=", ">"].map(operator);
    let name = "'idle_in_transaction_session_timeout'";
    let current = format!("pg_catalog.current_setting({name})::pg_catalog.interval");
    let millis = limit.as_millis();
    format!(
        "CASE WHEN {current} {eq} '0'::pg_catalog.interval OR {current} {gt} '{millis} ms'::pg_catalog.interval
    THEN pg_catalog.set_config({name}, '{millis}', true) END"
    )
}
