//! Any number of rows, in every state, with one array a column.
//!
//! Each statement looks its rows up by key once, in `found`. From there on a row is reached by its `ctid`:
//! to lock it, and to write it in the version that was locked.

use super::{ACQUIRE, NOW, RELEASE, requests, wakes};

/// The requests, one row for each, and the place of its row in the snapshot, NULL for an absent one.
fn found(table: &str, columns: &[(&str, &str)]) -> String {
    let requests = requests(columns);
    format!(
        "found AS MATERIALIZED (
    SELECT r.*, t.ctid AS place FROM {requests} LEFT JOIN {table} t ON t.lock_key = r.lock_key
)"
    )
}

/// Answers: key, outcome, fence token, remaining, wanted, and owner, holder and token of the occupant.
pub(super) fn acquire(table: &str) -> String {
    let found = found(table, &ACQUIRE);
    format!(
        r#"WITH {found}, inserted AS (
    INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
        fence_ceiling, wanted_until, acquired_at, holder, revoked)
    SELECT lock_key, new_owner, 1, now + ttl, new_lease, now, now + spare_tokens, 0, now, new_holder, false
    FROM (SELECT *, {NOW} AS now FROM found WHERE place IS NULL ORDER BY lock_key COLLATE "C") fresh
    ON CONFLICT (lock_key) DO NOTHING
    RETURNING lock_key, fence_token, expire_at - acquired_at AS remaining
), judged AS MATERIALIZED (
    SELECT *,
        NOT mine AND NOT (reentrant_count > 0 AND expire_at > now) AS takes,
        mine AND reentrant_count > 1 AND expire_at > now AS repeats,
        -- Only when less than half of the wish is left, so that pollers do not write each time.
        NOT mine AND reentrant_count > 0 AND expire_at > now
            AND coalesce(wanted_until < now + wanted_for / 2, false) AS wants
    FROM (
        SELECT *, {NOW} AS now FROM (
            SELECT f.*, t.ctid AS locked_at, t.lease_id = f.new_lease AS mine, t.reentrant_count, t.expire_at,
                t.fence_token, t.fence_ceiling, t.wanted_until, t.lock_owner, t.holder
            -- The count makes the inserts come first.
            FROM (SELECT count(*) FROM inserted) before, found f JOIN {table} t ON t.ctid = f.place
            FOR UPDATE OF t SKIP LOCKED
        ) locked
    ) timed
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
    FROM judged j
    WHERE t.ctid = j.locked_at AND (j.takes OR j.repeats OR j.wants)
    RETURNING j.lock_key,
        CASE WHEN j.wants THEN 'busy' WHEN j.takes AND j.reentrant_count > 0 THEN 'taken over'
            ELSE 'granted' END,
        t.fence_token, t.expire_at - j.now, t.wanted_until > j.now,
        CASE WHEN j.reentrant_count > 0 THEN j.lock_owner END,
        CASE WHEN j.reentrant_count > 0 THEN j.holder END, j.fence_token
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
    SELECT f.lock_key, f.wanted_for, t.fence_token, t.expire_at, t.wanted_until, t.lock_owner, t.holder, {NOW} AS now
    FROM found f JOIN {table} t ON t.ctid = f.place
    WHERE f.lock_key NOT IN (SELECT lock_key FROM judged) AND t.reentrant_count > 0 AND t.lease_id <> f.new_lease
) skipped
WHERE expire_at > now AND coalesce(wanted_until >= now + wanted_for / 2, true)"#
    )
}

/// The part that extend and release share: the rows of the leases, locked, and then the clock.
fn timed(table: &str, requests: &[(&str, &str)], columns: &str) -> String {
    let found = found(table, requests);
    format!(
        "WITH {found}, timed AS MATERIALIZED (
    SELECT *, {NOW} AS now FROM (
        SELECT f.*, t.ctid AS locked_at, t.lease_id = f.lease AS mine, t.reentrant_count, t.expire_at,
            t.wanted_until{columns}
        FROM found f JOIN {table} t ON t.ctid = f.place FOR UPDATE OF t SKIP LOCKED
    ) locked
)"
    )
}

/// Answers: key, outcome, remaining, revoked, wanted.
pub(super) fn extend(table: &str) -> String {
    let columns = [
        ("lock_key", "text"),
        ("lease", "uuid"),
        ("count", "integer"),
        ("ttl", "bigint"),
        ("new_owner", "uuid"),
        ("new_holder", "text"),
        ("new_token", "bigint"),
    ];
    let timed = timed(table, &columns, ", t.revoked");
    format!(
        "{timed}, written AS (
    UPDATE {table} t SET
        reentrant_count = l.count,
        lock_owner = CASE WHEN l.new_token >= t.fence_token THEN l.new_owner ELSE t.lock_owner END,
        holder = CASE WHEN l.new_token >= t.fence_token THEN l.new_holder ELSE t.holder END,
        fence_token = greatest(l.new_token, t.fence_token),
        expire_at = CASE WHEN l.revoked THEN t.expire_at ELSE greatest(t.expire_at, l.now + l.ttl) END
    FROM timed l
    WHERE t.ctid = l.locked_at AND l.mine AND l.reentrant_count > 0 AND l.expire_at > l.now
    RETURNING l.lock_key, 'extended', t.expire_at - l.now, t.revoked, t.wanted_until > l.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM timed WHERE NOT (mine AND reentrant_count > 0 AND expire_at > now)
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM found WHERE place IS NULL"
    )
}

/// Answers: key, outcome, wanted.
pub(super) fn release(table: &str) -> String {
    let (timed, wakes) = (timed(table, &RELEASE, ""), wakes(table, "t.wanted_until > l.now"));
    format!(
        "{timed}, written AS (
    UPDATE {table} t SET reentrant_count = 0
    FROM timed l
    WHERE t.ctid = l.locked_at AND l.mine AND l.reentrant_count > 0 AND l.expire_at > l.now
    RETURNING l.lock_key, 'freed', {wakes}
)
SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN mine AND reentrant_count = 0 THEN 'free' ELSE 'lost' END, wanted_until > now FROM timed
WHERE NOT (mine AND reentrant_count > 0 AND expire_at > now)
UNION ALL
SELECT lock_key, 'lost', false FROM found WHERE place IS NULL"
    )
}
