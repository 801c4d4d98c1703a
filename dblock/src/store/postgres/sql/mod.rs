//! The SQL text of the PostgreSQL store.
//!
//! # Why a statement gives one right answer to each request
//! The parts of a statement share one snapshot. Rows are found in it, then locked with `SKIP LOCKED` in
//! their newest version: whoever changed a row in between has committed, or the row is skipped. What
//! `locked` returns is therefore the present state, and nobody else changes it until the statement ends.
//! The clock is read after that, row by row. The `UPDATE` finds the same rows by key in the snapshot and
//! follows them to the locked version, which READ COMMITTED does for an `UPDATE` whose row has changed.
//! In a stricter isolation level both steps fail with a serialization error instead.
//!
//! A grant is only ever read from what `INSERT` and `UPDATE` returned. A request that no part answers is
//! one whose row was locked, or came or went since the snapshot: `Skipped`.
//!
//! # Why there is no deadlock
//! Only the `INSERT` can wait: for another one of the same key, or for an update of a row that is newer
//! than the snapshot. It runs in key order, and before the `UPDATE` of the same statement, which has all
//! its locks already. So a statement that others wait for never waits for them.

mod many;
mod one;
mod rest;

use std::sync::Arc;

pub(super) use rest::verify;

use crate::store::table::TableName;

/// µs since the Unix epoch. `now()` would be the start of the transaction.
///
/// `date_part` is in double precision: each µs up to the year 2106 comes out exactly, because the errors of
/// the quotient and of the product stay below half a µs together. `extract` would be slow, as a `numeric`.
const NOW: &str = "(date_part('epoch', clock_timestamp()) * 1000000)::bigint";

/// The channel of the table's wake-ups: the same under each of the table's names, and no other table's.
fn channel(table: &str) -> String {
    format!("'dblock_' || '{table}'::regclass::oid")
}

/// Whether somebody waits for a key that has just been released, who is then notified when the statement
/// commits. Only then: notifications make commits wait for one another.
fn wakes(table: &str, wanted: &str) -> String {
    let channel = channel(table);
    format!("CASE WHEN {wanted} THEN pg_notify({channel}, t.lock_key) IS NOT NULL ELSE false END")
}

/// The statements of an action.
#[derive(Debug)]
pub(super) struct Pair {
    /// One row with plain parameters, in the state that it usually has. It answers and changes nothing
    /// when the row is in another one; `many` is asked then. Half the work of `many` for the server.
    pub(super) one: Arc<str>,
    /// Any number of rows, with arrays, in every state.
    pub(super) many: Arc<str>,
}

/// Every statement for one table.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) acquire: Pair,
    pub(super) extend: Pair,
    pub(super) release: Pair,
    pub(super) inspect: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) force_release: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) channel: Arc<str>,
    pub(super) version: Arc<str>,
}

impl Sql {
    pub(super) fn new(table: &TableName) -> Self {
        let (version_table, table) = (table.quoted_version('"'), table.quoted('"'));
        Self {
            acquire: Pair {
                one: one::acquire(&table).into(),
                many: many::acquire(&table),
            },
            extend: Pair {
                one: one::extend(&table).into(),
                many: many::extend(&table),
            },
            release: Pair {
                one: one::release(&table).into(),
                many: many::release(&table),
            },
            inspect: rest::inspect(&table).into(),
            revoke: rest::revoke(&table).into(),
            force_release: rest::force_release(&table).into(),
            purge: rest::purge(&table).into(),
            channel: format!("SELECT {}", channel(&table)).into(),
            // The join finds a missing lock table.
            version: format!(
                "SELECT v.version, v.min_client FROM {version_table} v \
                 LEFT JOIN (SELECT FROM {table} LIMIT 0) t ON true"
            )
            .into(),
        }
    }
}
