//! One row in its usual state: the uncontended path, in one round trip.
//!
//! If the row is locked or in another state, the statement changes nothing and returns no row; then that of
//! [`super::general`] is sent. The parent module's text on locks applies here too.

use super::{NO_SUCCESSOR, NOW, Notify, Parts, WITHOUT_FLUSH, ceiling, tell_freed};

/// A row that is absent or free. Parameters: key, lease, owner, ttl, holder, spare tokens. Answers as a grant of
/// [`super::general`].
///
/// One upsert serves both states, at two thirds of the cost of an `UPDATE` and an `INSERT` in separate CTEs.
/// Before it the row is locked with `SKIP LOCKED`, and then the clock is read. PostgreSQL evaluates the `WHERE` of the
/// lock before the clock, because it names no column.
pub(super) fn acquire(table: &str) -> Parts {
    let token = "greatest(t.fence_ceiling + 1, excluded.fence_token)";
    let ceiling = ceiling(token, "$6");
    let answers = format!(
        "
INSERT INTO {table} AS t (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
    fence_ceiling, wanted_until, acquired_at, holder, revoked)
SELECT $1, $3, 1, now + $4, $2, now, now + $6, 0, now, $5, false
FROM (
    SELECT {NOW} AS now
    WHERE coalesce(
        (SELECT true FROM {table}
            WHERE lock_key = $1 AND reentrant_count = 0 AND lease_id <> $2
            FOR UPDATE SKIP LOCKED),
        NOT EXISTS (SELECT FROM {table} WHERE lock_key = $1))
) timed
ON CONFLICT (lock_key) DO UPDATE SET
    lock_owner = excluded.lock_owner, reentrant_count = 1, expire_at = excluded.expire_at,
    lease_id = excluded.lease_id, fence_token = {token}, fence_ceiling = {ceiling},
    acquired_at = excluded.acquired_at, holder = excluded.holder, revoked = false, {NO_SUCCESSOR}
WHERE t.reentrant_count = 0 AND t.lease_id <> $2
RETURNING t.lock_key, 'granted', t.fence_token, $4, t.wanted_until > t.acquired_at"
    );
    Parts {
        with: String::new(),
        answers,
        columns: "lock_key, outcome, fence_token, remaining, wanted",
    }
}

/// The row that the lease holds and that meets `also`, locked; both are checked before the clock is read.
fn is_held(table: &str, also: &str) -> String {
    format!(
        "t.ctid = (
    SELECT ctid FROM {table} WHERE lock_key = $1 AND lease_id = $2 AND reentrant_count > 0{also}
    FOR UPDATE SKIP LOCKED
) AND t.expire_at > {NOW}"
    )
}

/// A row that the lease holds. Parameters: key, lease, count, ttl, and the owner, holder and token that the row
/// is to name, or NULL. Answers as the extend of [`super::general`].
pub(super) fn extend(table: &str) -> String {
    let is_held = is_held(table, "");
    let ceiling = ceiling("$7", "t.fence_ceiling - t.fence_token");
    format!(
        "
UPDATE {table} t SET
    reentrant_count = greatest($3, 1),
    fence_ceiling = CASE WHEN $7 > t.fence_ceiling THEN {ceiling} ELSE t.fence_ceiling END,
    lock_owner = CASE WHEN $7 >= t.fence_token THEN $5 ELSE t.lock_owner END,
    holder = CASE WHEN $7 >= t.fence_token THEN $6 ELSE t.holder END,
    fence_token = greatest($7, t.fence_token),
    expire_at = CASE WHEN t.revoked THEN t.expire_at ELSE greatest(CASE WHEN $3 > 0 THEN t.expire_at END, {NOW} + $4) END
WHERE {is_held}
RETURNING t.lock_key, 'extended', t.expire_at - {NOW}, t.revoked, t.wanted_until > {NOW}"
    )
}

/// A row that the lease holds, without a successor. Parameters: key, lease. Answers as the release of
/// [`super::general`].
pub(super) fn release(table: &str) -> String {
    let is_held = is_held(table, &format!(" AND next_until <= {NOW}"));
    let tell = tell_freed(table, &format!("t.wanted_until > {NOW}"), Notify::Waiters);
    format!(
        "
UPDATE {table} t SET reentrant_count = 0, {NO_SUCCESSOR}
WHERE {is_held} AND (SELECT {WITHOUT_FLUSH})
RETURNING t.lock_key, 'freed', {tell}"
    )
}
