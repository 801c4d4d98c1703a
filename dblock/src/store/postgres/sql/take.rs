//! The statement that takes a key in a transaction of the user's.

use std::time::Duration;

use super::rest::{identity, limit_idling, operator};
use super::{NO_SUCCESSOR, NOW, WITHOUT_FLUSH};
use crate::store::fence::take::{ABSENT, AHEAD, HELD, LOCKED, SKIPPED, TAKEN};

/// The first word of the answer instead of [`TAKEN`], by a part of the transaction that a savepoint can take back.
pub(in super::super) const TAKEN_BELOW_SAVEPOINT: &str = "savepoint";

/// `$1` key, `$2` lease, `$3` owner, `$4` holder, as text. Returns one row. The limit applies to a transaction that has
/// locked the row, from then on.
///
/// A plain read shows whether the row can be taken. Only then is it locked, by its key alone: so a row that was
/// skipped differs from one that is locked now and has changed since. That one is not written, and whoever asked
/// must end the transaction, or the holder's own requests would be skipped.
pub(in super::super) fn take(table: &str, idle_limit: Option<Duration>) -> String {
    let [eq, lt, gt, minus] = ["=", "<", ">", "-"].map(operator);
    let (taken, limited, values) = (taken(), limit_idling(idle_limit), values("l.now"));
    format!(
        "WITH seen AS MATERIALIZED (
    SELECT reentrant_count, fence_ceiling {minus} {NOW} AS ahead FROM {table} WHERE lock_key {eq} $1::pg_catalog.text
), locked AS MATERIALIZED (
    SELECT t.ctid, t.reentrant_count, t.fence_ceiling FROM {table} t
    WHERE t.lock_key {eq} $1::pg_catalog.text AND (SELECT reentrant_count {eq} 0 AND ahead {lt} 0 FROM seen)
    FOR UPDATE SKIP LOCKED
), timed AS MATERIALIZED (
    SELECT *, {NOW} AS now, {limited} AS limited FROM locked
), written AS (
    UPDATE {table} t SET {values}
    FROM timed l WHERE t.ctid {eq} l.ctid AND l.reentrant_count {eq} 0 AND l.fence_ceiling {lt} l.now
    RETURNING {taken} AS answer
)
SELECT coalesce(
    (SELECT answer FROM written),
    (SELECT '{LOCKED}' FROM locked),
    (SELECT CASE WHEN reentrant_count {gt} 0 THEN '{HELD}'
        WHEN ahead {lt} 0 THEN '{SKIPPED}' ELSE pg_catalog.concat('{AHEAD} ', ahead) END FROM seen),
    '{ABSENT}')"
    )
}

/// As [`take`], for a transaction that ends at once where this returns no row: so it may have locked a row that it
/// has not written. A third cheaper, because it says nothing of a row that cannot be taken.
pub(in super::super) fn take_free(table: &str, idle_limit: Option<Duration>) -> String {
    let [eq, lt] = ["=", "<"].map(operator);
    let (taken, limited, values) = (taken(), limit_idling(idle_limit), values("l.now"));
    // The clock is read, and the limit set, for a row that is locked: OFFSET keeps the two apart.
    format!(
        "UPDATE {table} t SET {values}
FROM (
    SELECT free.ctid, {NOW} AS now, {limited} AS limited FROM (
        SELECT ctid FROM {table} WHERE lock_key {eq} $1::pg_catalog.text AND reentrant_count {eq} 0 AND fence_ceiling {lt} {NOW}
        FOR UPDATE SKIP LOCKED
    ) free OFFSET 0
) l WHERE t.ctid {eq} l.ctid AND t.fence_ceiling {lt} l.now
RETURNING {taken}"
    )
}

/// What a take writes at this time: see [`take`].
fn values(now: &str) -> String {
    format!(
        "lock_owner = $3::pg_catalog.text::pg_catalog.uuid, lease_id = $2::pg_catalog.text::pg_catalog.uuid,
        holder = $4::pg_catalog.text, expire_at = {now}, fence_token = {now}, fence_ceiling = {now}, acquired_at = {now},
        revoked = false, {NO_SUCCESSOR}"
    )
}

/// The answer of a take that has written the row: the token, the transaction's id, and the [`identity`] of the table
/// follow the first word.
fn taken() -> String {
    let (eq, identity) = (operator("="), identity("t.tableoid"));
    format!(
        "pg_catalog.concat(CASE WHEN t.xmin {eq} pg_catalog.pg_current_xact_id()::pg_catalog.xid
        THEN '{TAKEN}' ELSE '{TAKEN_BELOW_SAVEPOINT}' END, ' ', t.fence_token, ' ', pg_catalog.pg_current_xact_id(), ' ',
        {identity})"
    )
}

/// Parameters: the keys. Makes a free row for each that has none, in key order, as [`super`] says, and returns a row
/// for each. Its ceiling is the clock, so that no purge deletes it before it is taken.
pub(super) fn make_free_rows(table: &str) -> String {
    format!(
        "INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token, fence_ceiling,
    acquired_at, holder)
SELECT lock_key, '00000000-0000-0000-0000-000000000000'::uuid, 0, now, '00000000-0000-0000-0000-000000000000'::uuid, now, now, now, ''
FROM (SELECT lock_key, {NOW} AS now FROM unnest($1::text[]) r(lock_key) WHERE {WITHOUT_FLUSH} ORDER BY lock_key) made
ON CONFLICT (lock_key) DO NOTHING RETURNING 1"
    )
}

/// Commits, unless the transaction is no longer that of this id: then the message fails before its second
/// statement. No new transaction would do: what is sent after it must not end up outside of all.
pub(in super::super) fn commit(transaction: &str) -> String {
    let eq = operator("=");
    format!(
        "SELECT CASE WHEN pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text {eq} '{transaction}'
    THEN '1' ELSE '{OVER}' END::integer; COMMIT AND CHAIN"
    )
}

/// What an error of [`commit`] says when the transaction was over before.
pub(in super::super) const OVER: &str = "dblock: the transaction is over";
