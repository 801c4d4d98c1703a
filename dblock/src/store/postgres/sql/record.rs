//! The statements of the table of records. Each is a transaction of its own, or goes with a batch of acquires
//! or releases.
//!
//! A write compares the version in its `WHERE`, on the row that it has locked. So of two writes that expect the
//! same version, the second finds another one.
//!
//! A change that goes with a batch skips a record that is being replaced, because the batch has rows of the lock
//! table locked. It waits for another insert of the same key, which has no such row locked.

use std::sync::Arc;

#[cfg(feature = "run_once")]
use super::rest::operator;
use super::{ACQUIRE, NO_SUCCESSOR, NOW, Notify, Parts, RELEASE, table_of, tell_freed};
use crate::store::sql_row::RECORD_COLUMNS;

/// The statements.
#[derive(Debug)]
pub(in super::super) struct Statements {
    pub(in super::super) read: Arc<str>,
    pub(in super::super) read_all: Arc<str>,
    pub(in super::super) insert: Arc<str>,
    pub(in super::super) replace: Arc<str>,
    pub(in super::super) replace_quiet: Arc<str>,
    pub(in super::super) delete: Arc<str>,
    pub(in super::super) insert_under: Arc<str>,
    pub(in super::super) replace_under: Arc<str>,
    pub(in super::super) delete_under: Arc<str>,
    pub(in super::super) list: Arc<str>,
    pub(in super::super) purge: Arc<str>,
}

impl Statements {
    /// Of the quoted tables.
    pub(super) fn new(records: &str, locks: &str) -> Self {
        let replace = |notify| replace(records, locks, notify).into();
        Self {
            read: format!("SELECT {RECORD_COLUMNS}, {NOW} FROM {records} WHERE record_key = $1").into(),
            read_all: format!("SELECT {RECORD_COLUMNS}, {NOW} FROM {records} WHERE record_key = ANY($1)")
                .into(),
            insert: (insert(records, "") + " RETURNING true").into(),
            insert_under: insert_under(records, locks).into(),
            replace: replace(Notify::Waiters),
            replace_quiet: replace(Notify::Nobody),
            replace_under: changed_under(&update(records), records, locks, 13).into(),
            delete_under: changed_under(&delete(records), records, locks, 5).into(),
            delete: format!("{} RETURNING true", delete(records)).into(),
            // Parameters: prefix, state or NULL, limit, whether the attempt must have the lock or NULL.
            list: format!(
                "SELECT {RECORD_COLUMNS}, {NOW}, has_lock FROM (
    SELECT *, state = 'processing' AND EXISTS (
        SELECT FROM {locks} l WHERE l.lock_key = r.record_key AND l.fence_token <= r.fence_token
            AND l.reentrant_count > 0 AND l.expire_at > {NOW}) AS has_lock
    FROM {records} r
    WHERE record_key >= $1 AND starts_with(record_key, $1) AND ($2 IS NULL OR state = $2)
) found
WHERE $4 IS NULL OR has_lock = $4
ORDER BY record_key LIMIT $3"
            )
            .into(),
            purge: purge(records).into(),
        }
    }
}

/// Makes `change` in the CTE `written` while the lease of parameter `lease_id` on the key `$1` is live. It locks
/// the lease's row, so no release and no takeover comes before the commit. `with` is the CTE `record`, which may
/// lock the record.
///
/// It also writes that row: then a release with an older snapshot finds another version of the row, and starts
/// anew with a snapshot that has the record.
///
/// It waits for no locked row: the transaction that has the row locked may be the caller's own, and wait for the
/// caller. Returns whether the change was made, and whether a locked row prevented it.
fn under(change: &str, with: &str, is_locked: &str, locks: &str, lease_id: usize) -> String {
    let row = format!("FROM {locks} WHERE lock_key = $1 AND lease_id = ${lease_id} AND reentrant_count > 0");
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT ctid AS place {row} FOR UPDATE SKIP LOCKED
), live AS (
    UPDATE {locks} t SET lease_id = t.lease_id FROM locked WHERE t.ctid = locked.place RETURNING t.expire_at
){with}, written AS (
    {change}
    RETURNING true
)
SELECT EXISTS (SELECT FROM written),
    NOT EXISTS (SELECT FROM live) AND EXISTS (SELECT {row}){is_locked}"
    )
}

/// Parameters: those of the change, and the lease.
fn changed_under(change: &str, records: &str, locks: &str, lease_id: usize) -> String {
    let with = format!(
        ", record AS MATERIALIZED (
    SELECT FROM {records} WHERE record_key = $1 FOR UPDATE SKIP LOCKED
)"
    );
    let change = format!(
        "{change} AND EXISTS (SELECT FROM live WHERE expire_at > {NOW}) AND EXISTS (SELECT FROM record)"
    );
    let is_locked = format!(
        "
    OR NOT EXISTS (SELECT FROM record) AND EXISTS (SELECT FROM {records} WHERE record_key = $1)"
    );
    under(&change, &with, &is_locked, locks, lease_id)
}

/// Parameters: those of [`insert`], and the lease.
fn insert_under(records: &str, locks: &str) -> String {
    let live = format!(" CROSS JOIN live WHERE expire_at > {NOW}");
    under(&insert(records, &live), "", "", locks, 10)
}

/// Parameters: key, state, attempts, token, fingerprint, result, error, holder, keep. `live` is a condition.
fn insert(records: &str, live: &str) -> String {
    format!(
        "INSERT INTO {records} ({RECORD_COLUMNS})
SELECT $1, $2, $3, $4, $5, $6, $7, $8, now, CASE WHEN $2 = 'processing' THEN 0 ELSE now END, now + $9
FROM (SELECT {NOW} AS now) clock{live}
ON CONFLICT (record_key) DO NOTHING"
    )
}

/// Parameters: key, and the state, token and attempts that are expected.
fn delete(records: &str) -> String {
    format!(
        "DELETE FROM {records} WHERE record_key = $1 AND state = $2 AND fence_token = $3 AND attempts = $4"
    )
}

/// Parameters: those of [`insert`]; the state, token and attempts that are expected.
fn update(records: &str) -> String {
    format!(
        "UPDATE {records} SET state = $2, attempts = $3, fence_token = $4, fingerprint = $5, result = $6, error = $7,
    holder = $8, started_at = CASE WHEN $2 = 'processing' THEN {NOW} ELSE started_at END,
    finished_at = CASE WHEN $2 = 'processing' THEN 0 ELSE {NOW} END, keep_until = {NOW} + $9
WHERE record_key = $1 AND state = $10 AND fence_token = $11 AND attempts = $12
    AND (state <> 'succeeded' OR keep_until <= {NOW} OR $2 = 'succeeded' AND fence_token < $4) AND fence_token <= $4"
    )
}

/// Parameters: those of [`update`]; the lease to end, or NULL. Returns a row if the record was written.
fn replace(records: &str, locks: &str, notify: Notify) -> String {
    let update = update(records);
    let tell = tell_freed(locks, &format!("t.wanted_until > {NOW}"), notify);
    format!(
        "WITH written AS (
    {update}
    RETURNING true AS done
), freed AS (
    UPDATE {locks} t SET reentrant_count = 0, {NO_SUCCESSOR}
    WHERE (SELECT done FROM written) AND t.lock_key = $1 AND t.lease_id = $13 AND t.reentrant_count > 0
        AND t.expire_at > {NOW}
    RETURNING {tell} AS told
)
SELECT done, (SELECT told FROM freed) FROM written"
    )
}

/// The columns of changes that go with a batch, after the batch's own. Without `state` the record is deleted;
/// without `old_state` there must be none yet.
const CHANGE: [(&str, &str); 11] = [
    ("state", "text"),
    ("attempts", "integer"),
    ("token", "bigint"),
    ("fingerprint", "uuid"),
    ("result", "text"),
    ("error", "text"),
    ("holder", "text"),
    ("keep", "bigint"),
    ("old_state", "text"),
    ("old_token", "bigint"),
    ("old_attempts", "integer"),
];

/// One acquire of a row in its usual state, which also inserts a record. Parameters: those of the acquire,
/// and those of [`insert`] from `state` on. One more answer: `recorded`.
pub(super) fn with_one_acquire(acquire: &Parts, records: &str) -> String {
    let Parts { answers, columns, .. } = acquire;
    format!(
        "WITH answered({columns}) AS ({answers}
), inserted AS (
    INSERT INTO {records} ({RECORD_COLUMNS})
    SELECT $1, $7, $8, CASE $9::bigint WHEN 0 THEN fence_token ELSE $9::bigint END, $10, $11, $12, $13, now,
        CASE WHEN $7 = 'processing' THEN 0 ELSE now END, now + $14
    FROM (SELECT fence_token, {NOW} AS now FROM answered) granted
    ON CONFLICT (record_key) DO NOTHING RETURNING true
)
SELECT *, EXISTS (SELECT FROM inserted) AS recorded FROM answered"
    )
}

/// A batch of acquires that also changes the records of the keys that it grants. One more answer: `recorded`.
pub(super) fn with_acquire(acquire: &Parts, records: &str) -> String {
    let granted = "SELECT lock_key, fence_token AS lease_token FROM answered WHERE outcome IN ('granted', 'taken over')";
    let changed = changed(acquire, granted, ACQUIRE.len(), records);
    format!("{changed}\nSELECT *, lock_key IN (SELECT record_key FROM changed) AS recorded FROM answered")
}

/// A batch of releases that also changes the records of the keys whose rows name the leases.
pub(super) fn with_release(release: &Parts, records: &str) -> String {
    let named = "SELECT lock_key, fence_token AS lease_token FROM judged WHERE mine";
    let changed = changed(release, named, RELEASE.len(), records);
    format!("{changed}\nSELECT * FROM answered")
}

/// The part up to the answers. `leases` selects the keys whose records change and the tokens of their leases,
/// and `before` is how many parameters the batch has.
fn changed(batch: &Parts, leases: &str, before: usize, records: &str) -> String {
    let Parts {
        with,
        answers,
        columns,
    } = batch;
    let comma = if with.is_empty() { "" } else { ", " };
    let numbered = CHANGE.into_iter().zip(before + 1..);
    let changes: Vec<_> = [(("lock_key", "text"), 1)].into_iter().chain(numbered).collect();
    let changes = table_of(&changes);
    let times = |now: &str, started_at: &str| {
        format!(
            "CASE WHEN c.state = 'processing' THEN {now} ELSE {started_at} END,
        CASE WHEN c.state = 'processing' THEN 0 ELSE {now} END, {now} + c.keep"
        )
    };
    let (inserted, replaced) = (times("c.now", "c.now"), times("c.now", "t.started_at"));
    format!(
        "WITH {with}{comma}answered({columns}) AS ({answers}
), changes AS MATERIALIZED (
    SELECT r.lock_key, r.state, r.attempts, CASE r.token WHEN 0 THEN lease_token ELSE r.token END AS token,
        r.fingerprint, r.result, r.error, r.holder, r.keep, r.old_state,
        CASE r.old_token WHEN 0 THEN lease_token ELSE r.old_token END AS old_token, r.old_attempts, {NOW} AS now
    FROM ({leases}) leases JOIN {changes} ON r.lock_key = leases.lock_key
), inserted_record AS (
    INSERT INTO {records} ({RECORD_COLUMNS})
    SELECT c.lock_key, c.state, c.attempts, c.token, c.fingerprint, c.result, c.error, c.holder,
        {inserted}
    FROM changes c WHERE c.old_state IS NULL ORDER BY c.lock_key COLLATE \"C\"
    ON CONFLICT (record_key) DO NOTHING RETURNING record_key
), expected AS MATERIALIZED (
    SELECT c.*, locked.place FROM changes c CROSS JOIN LATERAL (
        SELECT t.ctid AS place FROM {records} t
        WHERE t.record_key = c.lock_key AND t.state = c.old_state AND t.fence_token = c.old_token
            AND t.attempts = c.old_attempts
        FOR UPDATE SKIP LOCKED
    ) locked
), replaced AS (
    UPDATE {records} t SET (state, attempts, fence_token, fingerprint, result, error, holder,
        started_at, finished_at, keep_until) = ROW (c.state, c.attempts, c.token, c.fingerprint, c.result, c.error, c.holder,
        {replaced})
    FROM expected c
    WHERE t.ctid = c.place AND c.state IS NOT NULL AND (t.state <> 'succeeded' OR t.keep_until <= c.now
        OR c.state = 'succeeded' AND t.fence_token < c.token) AND t.fence_token <= c.token
    RETURNING t.record_key
), deleted AS (
    DELETE FROM {records} t USING expected c WHERE t.ctid = c.place AND c.state IS NULL RETURNING t.record_key
), changed AS (
    SELECT record_key FROM inserted_record UNION ALL SELECT record_key FROM replaced
    UNION ALL SELECT record_key FROM deleted
)"
    )
}

/// Parameters: key to start after, limit. Returns one row: how many records were looked at, the key of the
/// last one, and how many were deleted.
fn purge(records: &str) -> String {
    format!(
        "WITH looked_at AS MATERIALIZED (
    SELECT record_key FROM {records} WHERE record_key > $1 ORDER BY record_key LIMIT $2
), seen AS MATERIALIZED (
    SELECT count(*) AS rows, max(record_key) AS last FROM looked_at
), gone AS (
    DELETE FROM {records} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {records}
        WHERE record_key > $1 AND record_key <= (SELECT last FROM seen)
            AND state <> 'processing' AND keep_until <= {NOW}
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT rows, last, (SELECT count(*) FROM gone) FROM seen"
    )
}

/// The success of an attempt, in a user's session. `$1` key, `$2` token, `$3` attempts, `$4` result, `$5`
/// keep, as text. A row that others have locked is not written.
#[cfg(feature = "run_once")]
pub(in super::super) fn complete_in(records: &str) -> String {
    let [eq, plus] = ["=", "+"].map(operator);
    let attempt = attempt();
    format!(
        "WITH locked AS MATERIALIZED (
    SELECT ctid AS place FROM {records} WHERE record_key {eq} $1::pg_catalog.text FOR UPDATE SKIP LOCKED
)
UPDATE {records} t SET state = 'succeeded', result = $4::pg_catalog.text, error = NULL, finished_at = {NOW},
    keep_until = {NOW} {plus} $5::pg_catalog.text::bigint
FROM locked WHERE t.ctid {eq} locked.place AND {attempt}"
    )
}

/// `$1` key, `$2` token, `$3` attempts, as text.
#[cfg(feature = "run_once")]
pub(in super::super) fn is_another_attempt(records: &str) -> String {
    let (eq, attempt) = (operator("="), attempt());
    format!(
        "SELECT '1' WHERE NOT EXISTS (SELECT FROM {records} WHERE record_key {eq} $1::pg_catalog.text AND {attempt})"
    )
}

/// The attempt of `$2` token, `$3` attempts, as text.
#[cfg(feature = "run_once")]
fn attempt() -> String {
    let eq = operator("=");
    format!(
        "state {eq} 'processing' AND fence_token {eq} $2::pg_catalog.text::bigint
    AND attempts {eq} $3::pg_catalog.text::integer"
    )
}
