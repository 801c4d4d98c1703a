//! Rows in their usual state: an uncontended batch.
//!
//! As in [`super::one`], a request whose row is locked or in another state is not answered, and its row is not
//! changed; [`super::general`] is sent for the rest. Each row goes through the whole statement before the next
//! one, with nothing stored in between. That saves half of the general statement's cost.

use super::{
    ACQUIRE, NO_SUCCESSOR, NOW, Notify, Parts, RELEASE, WITHOUT_FLUSH, ceiling, requests, tell_freed,
};

/// Rows that are absent or free. Answers as a grant of [`super::general`].
///
/// `OFFSET 0` keeps the planner from reading all keys into a hash table, as a plan made for few keys would.
pub(super) fn acquire(table: &str) -> Parts {
    let requests = requests(&ACQUIRE);
    let token = "greatest(t.fence_ceiling + 1, excluded.fence_token)";
    let ceiling = ceiling(token, "excluded.fence_ceiling - excluded.fence_token");
    let answers = format!(
        "
INSERT INTO {table} AS t (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
    fence_ceiling, wanted_until, acquired_at, holder, revoked)
SELECT lock_key, new_owner, 1, now + ttl, new_lease, now, now + spare_tokens, 0, now, new_holder, false
FROM (
    SELECT r.*, {NOW} AS now
    FROM {requests} LEFT JOIN LATERAL (
        SELECT true AS free FROM {table} t
        WHERE t.lock_key = r.lock_key AND t.reentrant_count = 0 AND t.lease_id <> r.new_lease
        FOR UPDATE SKIP LOCKED
    ) locked ON true
    WHERE free OR NOT EXISTS (SELECT FROM {table} t WHERE t.lock_key = r.lock_key OFFSET 0)
) timed
ON CONFLICT (lock_key) DO UPDATE SET
    lock_owner = excluded.lock_owner, reentrant_count = 1, expire_at = excluded.expire_at,
    lease_id = excluded.lease_id, fence_token = {token}, fence_ceiling = {ceiling},
    acquired_at = excluded.acquired_at, holder = excluded.holder, revoked = false, {NO_SUCCESSOR}
WHERE t.reentrant_count = 0 AND t.lease_id <> excluded.lease_id
RETURNING t.lock_key, 'granted', t.fence_token, t.expire_at - t.acquired_at, t.wanted_until > t.acquired_at"
    );
    Parts {
        with: String::new(),
        answers,
        columns: "lock_key, outcome, fence_token, remaining, wanted",
    }
}

/// Rows held by the leases, without a successor. Answers as the release of [`super::general`].
pub(super) fn release(table: &str) -> String {
    let requests = requests(&RELEASE);
    let tell = tell_freed(table, &format!("t.wanted_until > {NOW}"), Notify::Waiters);
    format!(
        "
UPDATE {table} t SET reentrant_count = 0, {NO_SUCCESSOR}
WHERE t.ctid = ANY (ARRAY(
    SELECT locked.place FROM {requests} CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM {table} t
        WHERE t.lock_key = r.lock_key AND t.lease_id = r.lease AND t.reentrant_count > 0
            AND t.next_until <= {NOW}
        FOR UPDATE SKIP LOCKED
    ) locked
)) AND t.expire_at > {NOW} AND (SELECT {WITHOUT_FLUSH})
RETURNING t.lock_key, 'freed', {tell}"
    )
}
