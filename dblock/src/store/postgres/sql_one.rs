//! The SQL text for one row in the state that it usually has: the uncontended path, in one round trip.
//!
//! A statement that finds the row in another state, or locked, changes nothing and answers no row; the
//! general one of [`super::sql`] is asked then. What that module says about locks holds here too.

use super::sql::{NOW, wakes};

/// A row that is absent, free or expired. Parameters: key, lease, owner, ttl, holder, spare
/// tokens. Answers as [`super::sql`]'s acquire.
pub(super) fn acquire(table: &str) -> String {
    format!(
        "
WITH timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM (
        SELECT lease_id, reentrant_count, expire_at, fence_token, fence_ceiling, lock_owner, holder
        FROM {table} WHERE lock_key = $1 FOR UPDATE SKIP LOCKED
    ) locked
), written AS (
    UPDATE {table} t SET lock_owner = $3, lease_id = $2, holder = $5, reentrant_count = 1,
        fence_token = greatest(l.fence_ceiling + 1, l.now), fence_ceiling = greatest(l.fence_ceiling + 1, l.now) + $6,
        acquired_at = l.now, expire_at = l.now + $4, revoked = false
    FROM timed l
    WHERE t.lock_key = $1 AND l.lease_id <> $2 AND NOT (l.reentrant_count > 0 AND l.expire_at > l.now)
    RETURNING t.lock_key, CASE WHEN l.reentrant_count > 0 THEN 'taken over' ELSE 'granted' END,
        t.fence_token, t.expire_at - l.now, t.wanted_until > l.now, l.lock_owner, l.holder, l.fence_token
), inserted AS (
    INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
        fence_ceiling, wanted_until, acquired_at, holder, revoked)
    SELECT $1, $3, 1, now + $4, $2, now, now + $6, 0, now, $5, false FROM (SELECT {NOW} AS now) clock
    WHERE NOT EXISTS (SELECT FROM {table} WHERE lock_key = $1)
    ON CONFLICT (lock_key) DO NOTHING
    RETURNING lock_key, fence_token, expire_at - acquired_at AS remaining
)
SELECT * FROM written
UNION ALL
SELECT lock_key, 'granted', fence_token, remaining, false, NULL, NULL, NULL FROM inserted"
    )
}

/// A row that the lease holds, locked, and then the clock.
fn locked(table: &str) -> String {
    format!(
        "
WITH timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM (
        SELECT expire_at FROM {table} WHERE lock_key = $1 AND lease_id = $2 AND reentrant_count > 0
        FOR UPDATE SKIP LOCKED
    ) locked
)"
    )
}

/// A row that the lease holds. Parameters: key, lease, count, ttl, and the successor's owner,
/// holder and token or NULL. Answers as [`super::sql`]'s extend.
pub(super) fn extend(table: &str) -> String {
    let locked = locked(table);
    format!(
        "{locked}
UPDATE {table} t SET
    reentrant_count = $3,
    lock_owner = coalesce($5, t.lock_owner), holder = coalesce($6, t.holder),
    fence_token = coalesce($7, t.fence_token),
    expire_at = CASE WHEN t.revoked THEN t.expire_at ELSE greatest(t.expire_at, l.now + $4) END
FROM timed l WHERE t.lock_key = $1 AND l.expire_at > l.now
RETURNING t.lock_key, 'extended', t.expire_at - l.now, t.revoked, t.wanted_until > l.now"
    )
}

/// A row that the lease holds. Parameters: key, lease. Answers as [`super::sql`]'s release.
pub(super) fn release(table: &str) -> String {
    let (locked, wakes) = (
        locked(table),
        wakes(table, "t.wanted_until > l.now", "t.lock_key"),
    );
    format!(
        "{locked}
UPDATE {table} t SET reentrant_count = 0
FROM timed l WHERE t.lock_key = $1 AND l.expire_at > l.now
RETURNING t.lock_key, 'freed', {wakes}"
    )
}
