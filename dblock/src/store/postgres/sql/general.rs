//! Any number of rows, in every state, with one array for each column.
//!
//! Each statement finds its rows by key once, in `found`. Then it locks a row, and writes the locked version,
//! by its `ctid`.

use super::{
    ACQUIRE, Commit, LAST_TOKEN, NO_SUCCESSOR, NOW, Notify, Parts, RELEASE, WITHOUT_FLUSH, ceiling, requests,
    tell, tell_withdrawn,
};
use crate::store::clock::micros;
use crate::store::{NEXT_TTL, QUEUE_AHEAD};

/// The requests, one row each, with the `ctid` of the key's row in the snapshot, NULL where there is none.
fn found(table: &str, columns: &[(&str, &str)]) -> String {
    let requests = requests(columns);
    format!(
        "found AS MATERIALIZED (
    SELECT r.*, t.ctid AS place FROM {requests} LEFT JOIN {table} t ON t.lock_key = r.lock_key
)"
    )
}

/// Answers: key, outcome, fence token, remaining, wanted; owner, holder and token of the holder; and the ttl of
/// a successor's lease.
pub(super) fn acquire(table: &str) -> Parts {
    let found = found(table, &ACQUIRE);
    let ceiling = ceiling("j.next_token", "j.spare_tokens");
    let (ahead, longest) = (micros(QUEUE_AHEAD), micros(NEXT_TTL));
    let columns = [
        ("next_lease", "j.new_lease"),
        ("next_owner", "j.new_owner"),
        ("next_holder", "j.new_holder"),
        ("next_ttl", &format!("least(j.ttl, {longest})")),
        ("next_spare", "j.spare_tokens"),
        // For the same lease, never later than before.
        (
            "next_since",
            "least(j.since, CASE WHEN j.is_next THEN t.next_since END)",
        ),
    ];
    let next: Vec<_> = columns
        .iter()
        .map(|(column, then)| {
            format!("{column} = CASE WHEN j.gets THEN NULL WHEN j.queues THEN {then} ELSE t.{column} END")
        })
        .collect();
    let next = next.join(",\n        ");
    let with = format!(
        r#"{found}, inserted AS (
    INSERT INTO {table} (lock_key, lock_owner, reentrant_count, expire_at, lease_id, fence_token,
        fence_ceiling, wanted_until, acquired_at, holder, revoked)
    SELECT lock_key, new_owner, 1, now + ttl, new_lease, now, now + spare_tokens, 0, now, new_holder, false
    FROM (SELECT *, {NOW} AS now FROM found WHERE place IS NULL ORDER BY lock_key COLLATE "C") fresh
    ON CONFLICT (lock_key) DO NOTHING
    RETURNING lock_key, fence_token, expire_at - acquired_at AS remaining
), judged AS MATERIALIZED (
    SELECT *, mine AND held AND reentrant_count > 1 AS repeats,
        NOT mine AND NOT held AS gets,
        NOT mine AND held AS waits,
        -- Written again only when less than half of its time is left, so that pollers do not write each time.
        NOT mine AND held AND coalesce(wanted_until < now + wanted_for / 2, false) AS wants,
        NOT mine AND held AND wanted_for IS NOT NULL AND since IS NOT NULL AND CASE
            WHEN is_next THEN next_owner <> new_owner OR next_until < now + wanted_for / 2
            WHEN next_until > now THEN next_since >= since + {ahead}
            ELSE true END AS queues,
        -- The largest number there is gives an error.
        CASE WHEN NOT mine AND NOT held THEN greatest(fence_ceiling + 1, now) END AS next_token
    FROM (
        SELECT *, lease_id = new_lease AS mine, reentrant_count > 0 AND expire_at > now AS held,
            next_until > now AND next_lease = new_lease AS is_next, now - waited AS since
        FROM (
            SELECT *, {NOW} AS now FROM (
                SELECT f.*, t.ctid AS locked_at, t.lease_id, t.reentrant_count, t.expire_at, t.fence_token,
                    t.fence_ceiling, t.wanted_until, t.lock_owner, t.holder, t.next_lease, t.next_owner,
                    t.next_ttl, t.next_since, t.next_until
                -- The count makes the inserts come first.
                FROM (SELECT count(*) FROM inserted) before, found f JOIN {table} t ON t.ctid = f.place
                FOR UPDATE OF t SKIP LOCKED
            ) locked
        ) timed
    ) stated
), written AS (
    UPDATE {table} t SET
        lock_owner = CASE WHEN j.gets THEN j.new_owner ELSE t.lock_owner END,
        lease_id = CASE WHEN j.gets THEN j.new_lease ELSE t.lease_id END,
        holder = CASE WHEN j.gets THEN j.new_holder ELSE t.holder END,
        reentrant_count = CASE WHEN j.waits THEN t.reentrant_count ELSE 1 END,
        fence_token = CASE WHEN j.gets THEN j.next_token ELSE t.fence_token END,
        fence_ceiling = CASE WHEN j.gets THEN {ceiling} ELSE t.fence_ceiling END,
        acquired_at = CASE WHEN j.gets THEN j.now ELSE t.acquired_at END,
        expire_at = CASE WHEN j.gets THEN j.now + j.ttl ELSE t.expire_at END,
        revoked = t.revoked AND NOT j.gets,
        wanted_until = CASE WHEN j.wants THEN j.now + j.wanted_for ELSE t.wanted_until END,
        {next},
        next_until = CASE WHEN j.gets THEN 0 WHEN j.queues THEN j.now + j.wanted_for ELSE t.next_until END
    FROM judged j
    WHERE t.ctid = j.locked_at AND (j.gets OR j.repeats OR j.wants OR j.queues)
    RETURNING j.lock_key,
        CASE WHEN j.waits THEN CASE WHEN j.queues OR j.is_next THEN 'queued' ELSE 'busy' END
            WHEN j.gets AND j.reentrant_count > 0 THEN 'taken over' ELSE 'granted' END,
        t.fence_token, t.expire_at - j.now, t.wanted_until > j.now, j.lock_owner, j.holder, j.fence_token,
        t.next_ttl
)"#
    );
    Parts {
        with,
        answers: answers(table),
        columns: "lock_key, outcome, fence_token, remaining, wanted, owner, holder, holder_token, next_ttl",
    }
}

/// The answer to an acquire.
fn answers(table: &str) -> String {
    let ahead = micros(QUEUE_AHEAD);
    format!(
        "SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN waits THEN CASE WHEN is_next THEN 'queued' ELSE 'busy' END
        WHEN held THEN 'granted' ELSE 'lost' END,
    fence_token, expire_at - now, wanted_until > now, lock_owner, holder, fence_token, next_ttl
FROM judged WHERE NOT (gets OR repeats OR wants OR queues)
UNION ALL
SELECT lock_key, 'granted', fence_token, remaining, false, NULL, NULL, NULL, NULL FROM inserted
UNION ALL
-- Rows that others have locked: busy if the snapshot shows a holder, `wanted_until` is far enough ahead, and the
-- lease neither is the successor nor would have replaced it.
SELECT lock_key, 'busy', fence_token, expire_at - now, true, lock_owner, holder, fence_token, NULL
FROM (
    SELECT f.lock_key, f.new_lease, f.wanted_for, f.waited, t.fence_token, t.expire_at, t.wanted_until,
        t.lock_owner, t.holder, t.next_lease, t.next_since, t.next_until, {NOW} AS now
    FROM found f JOIN {table} t ON t.ctid = f.place
    WHERE f.lock_key NOT IN (SELECT lock_key FROM judged) AND t.reentrant_count > 0 AND t.lease_id <> f.new_lease
) skipped
WHERE expire_at > now AND coalesce(wanted_until >= now + wanted_for / 2, true)
    AND CASE WHEN next_until > now
        THEN next_lease <> new_lease AND (waited IS NULL OR next_since < now - waited + {ahead})
        ELSE waited IS NULL END"
    )
}

/// The part that the actions of a lease share: locks the rows, reads the clock, and compares the leases.
fn judged(table: &str, requests: &[(&str, &str)]) -> String {
    let found = found(table, requests);
    format!(
        "{found}, judged AS MATERIALIZED (
    SELECT *, mine AND reentrant_count > 0 AND expire_at > now AS inside
    FROM (
        SELECT *, lease_id = lease AS mine, {NOW} AS now FROM (
            SELECT f.*, t.ctid AS locked_at, t.lease_id, t.reentrant_count, t.expire_at, t.wanted_until,
                t.fence_token, t.fence_ceiling, t.next_lease, t.next_until, t.revoked
            FROM found f JOIN {table} t ON t.ctid = f.place FOR UPDATE OF t SKIP LOCKED OFFSET 0
        -- A version that is newer than the snapshot may have been written with a record that the snapshot does not show.
        ) locked WHERE locked_at = place
    ) timed
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
    let ceiling = ceiling("j.new_token", "t.fence_ceiling - t.fence_token");
    format!(
        "WITH {judged}, written AS (
    UPDATE {table} t SET
        reentrant_count = greatest(j.count, 1),
        fence_ceiling = CASE WHEN j.new_token > t.fence_ceiling THEN {ceiling} ELSE t.fence_ceiling END,
        lock_owner = CASE WHEN j.new_token >= t.fence_token THEN j.new_owner ELSE t.lock_owner END,
        holder = CASE WHEN j.new_token >= t.fence_token THEN j.new_holder ELSE t.holder END,
        fence_token = greatest(j.new_token, t.fence_token),
        expire_at = CASE WHEN t.revoked THEN t.expire_at ELSE greatest(CASE WHEN j.count > 0 THEN t.expire_at END, j.now + j.ttl) END
    FROM judged j
    WHERE t.ctid = j.locked_at AND j.inside
    RETURNING j.lock_key, 'extended', t.expire_at - j.now, t.revoked, t.wanted_until > j.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM judged WHERE NOT inside
UNION ALL
SELECT lock_key, 'lost', 0, false, false FROM found WHERE place IS NULL"
    )
}

/// Answers: key, outcome, fence token, remaining, wanted: as a grant. The successor stays.
pub(super) fn transfer(table: &str) -> String {
    let columns = [
        ("lock_key", "text"),
        ("lease", "uuid"),
        ("new_lease", "uuid"),
        ("new_owner", "uuid"),
        ("ttl", "bigint"),
        ("new_holder", "text"),
    ];
    let judged = judged(table, &columns);
    let token = "greatest(t.fence_ceiling + 1, j.now)";
    format!(
        "WITH {judged}, written AS (
    UPDATE {table} t SET
        lock_owner = j.new_owner, lease_id = j.new_lease, holder = j.new_holder, reentrant_count = 1,
        fence_token = {token}, fence_ceiling = {token}, acquired_at = j.now, expire_at = j.now + j.ttl
    FROM judged j
    WHERE t.ctid = j.locked_at AND j.inside AND NOT j.revoked AND j.lease <> j.new_lease
    RETURNING j.lock_key, 'granted', t.fence_token, t.expire_at - j.now, t.wanted_until > j.now
)
SELECT * FROM written
UNION ALL
SELECT lock_key,
    CASE WHEN lease_id = new_lease AND reentrant_count > 0 AND expire_at > now THEN 'granted' ELSE 'lost' END,
    fence_token, expire_at - now, wanted_until > now
FROM judged WHERE NOT inside OR revoked OR lease = new_lease
UNION ALL
SELECT lock_key, 'lost', 0, 0, false FROM found WHERE place IS NULL"
    )
}

/// Answers: key, outcome.
///
/// A row with a live successor is passed on to it: the row is held all the time, and the commit of this
/// statement is the whole pass-on. A key whose tokens are used up is freed.
pub(super) fn release(table: &str, commit: Commit, notify: Notify) -> Parts {
    let judged = judged(table, &RELEASE);
    let passes = format!("inside AND next_until > now AND fence_ceiling < {LAST_TOKEN}");
    // The columns of the successor are those of the row that is written.
    let token = "greatest(t.fence_ceiling + 1, j.now)";
    let columns = [
        ("lock_owner", "t.next_owner"),
        ("lease_id", "t.next_lease"),
        ("holder", "t.next_holder"),
        ("fence_token", token),
        ("fence_ceiling", &ceiling(token, "t.next_spare")),
        ("acquired_at", "j.now"),
        ("expire_at", "j.now + t.next_ttl"),
    ];
    let passed_on: Vec<_> = columns
        .iter()
        .map(|(column, then)| format!("{column} = CASE WHEN j.passes THEN {then} ELSE t.{column} END"))
        .collect();
    let passed_on = passed_on.join(",\n        ");
    let tell = format!(
        "CASE WHEN j.inside THEN {} ELSE {} END",
        tell(table, "j.passes", "t.wanted_until > j.now", notify),
        tell_withdrawn(table, "t.wanted_until > j.now", notify),
    );
    // A pass-on is a grant, which waits for the disk.
    let (commits, and_commits) = match commit {
        Commit::Flushed => (String::new(), ""),
        Commit::Unflushed => (
            format!(
                ", commits AS MATERIALIZED (
    SELECT CASE WHEN NOT bool_or(passes) THEN {WITHOUT_FLUSH} END FROM passing
)"
            ),
            " AND (SELECT true FROM commits)",
        ),
    };
    let with = format!(
        "{judged}, passing AS MATERIALIZED (
    SELECT *, {passes} AS passes FROM judged
){commits}, written AS (
    UPDATE {table} t SET
        reentrant_count = CASE WHEN j.passes THEN 1 WHEN j.inside THEN 0 ELSE t.reentrant_count END,
        {passed_on},
        revoked = t.revoked AND NOT j.passes,
        {NO_SUCCESSOR}
    FROM passing j
    WHERE t.ctid = j.locked_at{and_commits} AND (j.inside OR (NOT j.mine AND j.next_lease = j.lease))
    RETURNING j.lock_key,
        CASE WHEN j.passes THEN 'passed on' WHEN j.inside THEN 'freed' ELSE 'withdrawn' END, {tell}
)"
    );
    let answers = "SELECT * FROM written
UNION ALL
SELECT lock_key, CASE WHEN mine AND reentrant_count = 0 THEN 'free' ELSE 'lost' END, NULL FROM judged
WHERE NOT inside AND (mine OR next_lease IS DISTINCT FROM lease)
UNION ALL
SELECT lock_key, 'lost', NULL FROM found WHERE place IS NULL";
    Parts {
        with,
        answers: answers.into(),
        columns: "lock_key, outcome, told",
    }
}
