//! The statements of the table of records. Each is a transaction of its own.
//!
//! A write compares the version in its `WHERE`, on the row that it has locked. So of two writes that expect the same
//! version, the second finds another one.

use std::sync::Arc;

#[cfg(feature = "run_once")]
use super::rest::operator;
use super::{NO_SUCCESSOR, NOW, quiet, tell_freed};
use crate::store::sql_row::RECORD_COLUMNS;

/// The statements.
#[derive(Debug)]
pub(in super::super) struct Statements {
    pub(in super::super) read: Arc<str>,
    pub(in super::super) insert: Arc<str>,
    pub(in super::super) replace: Arc<str>,
    pub(in super::super) replace_quiet: Arc<str>,
    pub(in super::super) delete: Arc<str>,
    pub(in super::super) list: Arc<str>,
    pub(in super::super) purge: Arc<str>,
}

impl Statements {
    /// Of the quoted tables.
    pub(super) fn new(records: &str, locks: &str) -> Self {
        let replace = replace(records, locks);
        Self {
            read: format!("SELECT {RECORD_COLUMNS}, {NOW} FROM {records} WHERE record_key = $1").into(),
            insert: insert(records).into(),
            replace_quiet: quiet(&replace).into(),
            replace: replace.into(),
            // Parameters: key, and the state, token and attempts that are expected.
            delete: format!(
                "DELETE FROM {records}
WHERE record_key = $1 AND state = $2 AND fence_token = $3 AND attempts = $4 RETURNING true"
            )
            .into(),
            // Parameters: prefix, state or NULL, limit.
            list: format!(
                "SELECT {RECORD_COLUMNS}, {NOW} FROM {records}
WHERE record_key >= $1 AND starts_with(record_key, $1) AND ($2 IS NULL OR state = $2)
ORDER BY record_key LIMIT $3"
            )
            .into(),
            purge: purge(records).into(),
        }
    }
}

/// Parameters: key, state, attempts, token, fingerprint, result, error, holder, keep. Returns a row if there was none.
fn insert(records: &str) -> String {
    format!(
        "INSERT INTO {records} ({RECORD_COLUMNS})
SELECT $1, $2, $3, $4, $5, $6, $7, $8, now, CASE WHEN $2 = 'processing' THEN 0 ELSE now END, now + $9
FROM (SELECT {NOW} AS now) clock
ON CONFLICT (record_key) DO NOTHING RETURNING true"
    )
}

/// Parameters: those of [`insert`]; the state, token and attempts that are expected; the lease to end, or NULL. Returns
/// a row if the record was written.
fn replace(records: &str, locks: &str) -> String {
    let tell = tell_freed(locks, &format!("t.wanted_until > {NOW}"));
    format!(
        "WITH written AS (
    UPDATE {records} SET state = $2, attempts = $3, fence_token = $4, fingerprint = $5, result = $6, error = $7,
        holder = $8, started_at = CASE WHEN $2 = 'processing' THEN {NOW} ELSE started_at END,
        finished_at = CASE WHEN $2 = 'processing' THEN 0 ELSE {NOW} END, keep_until = {NOW} + $9
    WHERE record_key = $1 AND state = $10 AND fence_token = $11 AND attempts = $12
        AND (state <> 'succeeded' OR keep_until <= {NOW})
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

/// Parameters: key to start after, limit. Returns one row: how many records were looked at, the key of the last one, and
/// how many were deleted.
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

/// The success of an attempt, in a user's session. `$1` key, `$2` token, `$3` attempts, `$4` result, `$5` keep, as text.
#[cfg(feature = "run_once")]
pub(in super::super) fn complete_in(records: &str) -> String {
    let [eq, plus] = ["=", "+"].map(operator);
    format!(
        "UPDATE {records} SET state = 'succeeded', result = $4::pg_catalog.text, error = NULL, finished_at = {NOW},
    keep_until = {NOW} {plus} $5::pg_catalog.text::bigint
WHERE record_key {eq} $1::pg_catalog.text AND state {eq} 'processing'
    AND fence_token {eq} $2::pg_catalog.text::bigint AND attempts {eq} $3::pg_catalog.text::integer"
    )
}
