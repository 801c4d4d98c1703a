//! The statements of the table of records.

use std::sync::Arc;

use super::NOW;
use crate::store::sql_row::RECORD_COLUMNS;

/// The statements.
#[derive(Debug)]
pub(in super::super) struct RecordStatements {
    pub(in super::super) read: Arc<str>,
    pub(in super::super) insert: Arc<str>,
    pub(in super::super) replace: Arc<str>,
    pub(in super::super) delete: Arc<str>,
    pub(in super::super) list: Arc<str>,
    pub(in super::super) look: Arc<str>,
    pub(in super::super) purge: Arc<str>,
}

impl RecordStatements {
    /// Of the quoted tables.
    pub(super) fn new(table: &str, locks: &str) -> Self {
        // $1 key; the state, the token and the attempts that are expected.
        let version = |[state, token, attempts]: [usize; 3]| {
            format!(
                "record_key = $1 AND state = ${state} AND fence_token = ${token} AND attempts = ${attempts}"
            )
        };
        let is_over = format!("state <> 'processing' AND keep_until <= {NOW}");
        Self {
            // $1 key.
            read: format!("SELECT {RECORD_COLUMNS}, {NOW} FROM {table} WHERE record_key = $1").into(),
            // $1 key, $2 state, $3 attempts, $4 token, $5 fingerprint, $6 result, $7 error, $8 holder, $9
            // keep.
            insert: format!(
                "INSERT INTO {table} ({RECORD_COLUMNS}) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, {NOW}, iif($2 = 'processing', 0, {NOW}), {NOW} + $9) \
                 ON CONFLICT DO NOTHING RETURNING 1"
            )
            .into(),
            // As above, then the version that is expected: $10 state, $11 token, $12 attempts.
            replace: format!(
                "UPDATE {table} SET state = $2, attempts = $3, fence_token = $4, fingerprint = $5, result = $6, \
                     error = $7, holder = $8, started_at = iif($2 = 'processing', {NOW}, started_at), \
                     finished_at = iif($2 = 'processing', 0, {NOW}), keep_until = {NOW} + $9 \
                 WHERE {} AND (state <> 'succeeded' OR keep_until <= {NOW} OR $2 = 'succeeded' AND fence_token < $4) \
                     AND fence_token <= $4 RETURNING 1",
                version([10, 11, 12])
            )
            .into(),
            // $1 key, and the version that is expected.
            delete: format!("DELETE FROM {table} WHERE {} RETURNING 1", version([2, 3, 4])).into(),
            // $1 prefix, $2 state or NULL, $3 limit, $4 whether the attempt must have the lock or NULL. Compares bytes.
            list: format!(
                "SELECT {RECORD_COLUMNS}, {NOW}, has_lock FROM (SELECT *, state = 'processing' AND EXISTS (SELECT 1 \
                     FROM {locks} l WHERE l.lock_key = r.record_key AND l.fence_token <= r.fence_token \
                     AND l.reentrant_count > 0 AND l.expire_at > {NOW}) AS has_lock FROM {table} r \
                 WHERE record_key >= $1 AND substr(CAST(record_key AS BLOB), 1, octet_length($1)) = CAST($1 AS BLOB) \
                     AND ($2 IS NULL OR state = $2)) \
                 WHERE $4 IS NULL OR has_lock = $4 \
                 ORDER BY record_key LIMIT $3"
            )
            .into(),
            // $1 the key to start after, $2 limit. How many records there are, the last one's key, and how
            // many of them are over.
            look: format!(
                "SELECT count(*), max(record_key), sum(ended) FROM \
                 (SELECT record_key, {is_over} AS ended FROM {table} WHERE record_key > $1 ORDER BY record_key LIMIT $2)"
            )
            .into(),
            // $1 the key to start after, $2 the last key.
            purge: format!(
                "DELETE FROM {table} WHERE record_key > $1 AND record_key <= $2 AND {is_over} RETURNING 1"
            )
            .into(),
        }
    }
}

/// The success of an attempt. `$1` key, `$2` token, `$3` attempts, `$4` result, `$5` keep, as text.
#[cfg(feature = "run_once")]
pub(in super::super) fn complete_in(records: &str) -> String {
    format!(
        "UPDATE {records} SET state = 'succeeded', result = $4, error = NULL, finished_at = {NOW}, \
             keep_until = {NOW} + CAST($5 AS INTEGER) \
         WHERE record_key = $1 AND state = 'processing' AND fence_token = CAST($2 AS INTEGER) \
             AND attempts = CAST($3 AS INTEGER)"
    )
}
