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

/// Answers: key, outcome, fence token, remaining, wanted; owner, holder and token of the occupant; and of the
/// reservation the lease in front of it, token, spare tokens and remaining.
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
    SELECT *, mine AND held AND reentrant_count > 1 AS repeats,
        NOT mine AND NOT held AND NOT for_another AS takes,
        NOT mine AND (held OR for_another) AS waits,
        -- Only when less than half of what is there is left, so that pollers do not write each time.
        NOT mine AND (held OR for_another) AND coalesce(wanted_until < now + wanted_for / 2, false) AS wants,
        NOT mine AND held AND reserve AND NOT for_another
            AND (NOT for_me OR reserved_until < now + wanted_for / 2) AS reserves,
        CASE WHEN for_me THEN reserved_token ELSE greatest(fence_ceiling + 1, now) END AS next_token
    FROM (
        SELECT *, lease_id = new_lease AS mine, reentrant_count > 0 AND expire_at > now AS held,
            reserved_until > now AND reserved_for = new_lease AS for_me,
            reserved_until > now AND reserved_for <> new_lease AS for_another
        FROM (
            SELECT *, {NOW} AS now FROM (
                SELECT f.*, t.ctid AS locked_at, t.lease_id, t.reentrant_count, t.expire_at, t.fence_token,
                    t.fence_ceiling, t.wanted_until, t.lock_owner, t.holder, t.reserved_for, t.reserved_until,
                    t.reserved_token
                -- The count makes the inserts come first.
                FROM (SELECT count(*) FROM inserted) before, found f JOIN {table} t ON t.ctid = f.place
                FOR UPDATE OF t SKIP LOCKED
            ) locked
        ) timed
    ) stated
), written AS (
    UPDATE {table} t SET
        lock_owner = CASE WHEN j.takes THEN j.new_owner ELSE t.lock_owner END,
        lease_id = CASE WHEN j.takes THEN j.new_lease ELSE t.lease_id END,
        holder = CASE WHEN j.takes THEN j.new_holder ELSE t.holder END,
        reentrant_count = CASE WHEN j.waits THEN t.reentrant_count ELSE 1 END,
        fence_token = CASE WHEN j.takes THEN j.next_token ELSE t.fence_token END,
        fence_ceiling = CASE WHEN j.takes OR j.reserves AND NOT j.for_me
            THEN greatest(t.fence_ceiling, j.next_token + j.spare_tokens) ELSE t.fence_ceiling END,
        acquired_at = CASE WHEN j.takes THEN j.now ELSE t.acquired_at END,
        expire_at = CASE WHEN j.takes THEN j.now + j.ttl ELSE t.expire_at END,
        revoked = t.revoked AND NOT j.takes,
        wanted_until = CASE WHEN j.wants THEN greatest(t.wanted_until, j.now + j.wanted_for)
            ELSE t.wanted_until END,
        reserved_for = CASE WHEN j.takes THEN NULL WHEN j.reserves THEN j.new_lease ELSE t.reserved_for END,
        reserved_until = CASE WHEN j.takes THEN 0 WHEN j.reserves THEN j.now + j.wanted_for
            ELSE t.reserved_until END,
        reserved_token = CASE WHEN j.takes THEN 0 WHEN j.reserves THEN j.next_token ELSE t.reserved_token END
    FROM judged j
    WHERE t.ctid = j.locked_at AND (j.takes OR j.repeats OR j.wants OR j.reserves)
    RETURNING j.lock_key,
        CASE WHEN j.waits THEN CASE WHEN j.reserves OR j.for_me THEN 'reserved' ELSE 'busy' END
            WHEN j.takes AND j.reentrant_count > 0 THEN 'taken over' ELSE 'granted' END,
        t.fence_token, CASE WHEN j.waits AND NOT j.held THEN t.reserved_until ELSE t.expire_at END - j.now,
        t.wanted_until > j.now, j.lock_owner, j.holder, j.fence_token,
        j.lease_id, t.reserved_token, t.fence_ceiling - t.reserved_token, t.reserved_until - j.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN waits THEN CASE WHEN for_me THEN 'reserved' ELSE 'busy' END
        WHEN held THEN 'granted' ELSE 'lost' END,
    fence_token, CASE WHEN held THEN expire_at ELSE reserved_until END - now, wanted_until > now,
    lock_owner, holder, fence_token, lease_id, reserved_token, fence_ceiling - reserved_token,
    reserved_until - now
FROM judged WHERE NOT (takes OR repeats OR wants OR reserves)
UNION ALL
SELECT lock_key, 'granted', fence_token, remaining, false, NULL, NULL, NULL, NULL, NULL, NULL, NULL FROM inserted
UNION ALL
-- Rows that others have locked: busy if the snapshot shows a holder, already carries the wish, and the lease
-- could not have been next.
SELECT lock_key, 'busy', fence_token, expire_at - now, true, lock_owner, holder, fence_token,
    NULL, NULL, NULL, NULL
FROM (
    SELECT f.lock_key, f.new_lease, f.wanted_for, f.reserve, t.fence_token, t.expire_at, t.wanted_until,
        t.lock_owner, t.holder, t.reserved_for, t.reserved_until, {NOW} AS now
    FROM found f JOIN {table} t ON t.ctid = f.place
    WHERE f.lock_key NOT IN (SELECT lock_key FROM judged) AND t.reentrant_count > 0 AND t.lease_id <> f.new_lease
) skipped
WHERE expire_at > now AND coalesce(wanted_until >= now + wanted_for / 2, true)
    AND CASE WHEN reserved_until > now THEN reserved_for <> new_lease ELSE NOT reserve END"#
    )
}

/// The part that extend and release share: the rows, locked, then the clock, and what they are to the leases:
/// `inside` are those that hold them, `next` those that they are reserved for.
fn judged(table: &str, requests: &[(&str, &str)]) -> String {
    let found = found(table, requests);
    format!(
        "WITH {found}, judged AS MATERIALIZED (
    SELECT *, mine AND held AS inside, NOT mine AND reserved_until > now AND reserved_for = lease AS next
    FROM (
        SELECT *, lease_id = lease AS mine, reentrant_count > 0 AND expire_at > now AS held
        FROM (
            SELECT *, {NOW} AS now FROM (
                SELECT f.*, t.ctid AS locked_at, t.lease_id, t.reentrant_count, t.expire_at, t.wanted_until,
                    t.reserved_for, t.reserved_until, t.reserved_token
                FROM found f JOIN {table} t ON t.ctid = f.place FOR UPDATE OF t SKIP LOCKED
            ) locked
        ) timed
    ) stated
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
    let judged = judged(table, &columns);
    // A row that is reserved for the lease becomes its own if a successor is given, with no token from before the
    // reservation.
    let claims = "next AND coalesce(new_token >= reserved_token, false)";
    format!(
        "{judged}, written AS (
    UPDATE {table} t SET
        lease_id = j.lease,
        reentrant_count = j.count,
        lock_owner = CASE WHEN j.next OR j.new_token >= t.fence_token THEN j.new_owner ELSE t.lock_owner END,
        holder = CASE WHEN j.next OR j.new_token >= t.fence_token THEN j.new_holder ELSE t.holder END,
        fence_token = CASE WHEN j.next THEN j.new_token ELSE greatest(j.new_token, t.fence_token) END,
        fence_ceiling = CASE WHEN j.next THEN greatest(t.fence_ceiling, j.new_token) ELSE t.fence_ceiling END,
        acquired_at = CASE WHEN j.next THEN j.now ELSE t.acquired_at END,
        expire_at = CASE WHEN j.next THEN greatest(t.reserved_until, j.now + j.ttl) WHEN t.revoked THEN t.expire_at
            ELSE greatest(t.expire_at, j.now + j.ttl) END,
        revoked = t.revoked AND NOT j.next,
        reserved_for = CASE WHEN j.next THEN NULL ELSE t.reserved_for END,
        reserved_until = CASE WHEN j.next THEN 0 ELSE t.reserved_until END,
        reserved_token = CASE WHEN j.next THEN 0 ELSE t.reserved_token END
    FROM (SELECT *, {claims} AS claims FROM judged) j
    WHERE t.ctid = j.locked_at AND (j.inside OR j.claims)
    RETURNING j.lock_key, 'extended', t.expire_at - j.now, t.revoked, t.wanted_until > j.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM judged WHERE NOT (inside OR {claims})
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM found WHERE place IS NULL"
    )
}

/// Answers: key, outcome, wanted.
pub(super) fn release(table: &str) -> String {
    let judged = judged(table, &RELEASE);
    // Who withdraws from a row that nobody holds makes room for those that wait, too.
    let wakes = wakes(table, "t.wanted_until > j.now AND (j.inside OR NOT j.held)");
    format!(
        "{judged}, written AS (
    UPDATE {table} t SET
        reentrant_count = CASE WHEN j.inside THEN 0 ELSE t.reentrant_count END,
        reserved_for = CASE WHEN j.next THEN NULL ELSE t.reserved_for END,
        reserved_until = CASE WHEN j.next THEN 0 ELSE t.reserved_until END,
        reserved_token = CASE WHEN j.next THEN 0 ELSE t.reserved_token END
    FROM judged j
    WHERE t.ctid = j.locked_at AND (j.inside OR j.next)
    RETURNING j.lock_key, CASE WHEN j.inside THEN 'freed' ELSE 'withdrawn' END, {wakes}
)
SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN mine AND reentrant_count = 0 THEN 'free' ELSE 'lost' END, wanted_until > now FROM judged
WHERE NOT (inside OR next)
UNION ALL
SELECT lock_key, 'lost', false FROM found WHERE place IS NULL"
    )
}
