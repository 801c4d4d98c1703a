//! The SQL text of the PostgreSQL store.
//!
//! An action has up to three statements. [`one`] and [`many`] expect the state that a row usually has, which
//! is one without a reservation, and answer nothing for the others; [`general`] is then asked for those.
//!
//! # Why a statement gives one right answer to each request
//! The parts of a statement share one snapshot. Rows are found in it, then locked with `SKIP LOCKED` in
//! their newest version: whoever changed a row in between has committed, or the row is skipped. The lock's
//! conditions are asked of the version that is locked, and nobody else changes it until the statement ends.
//! The clock is read after that, row by row.
//!
//! An `UPDATE` finds its row by the `ctid` of the locked version. If that is newer than the snapshot, it finds
//! nothing, and the request is not answered. An upsert finds the newest version by key, and asks its
//! conditions of that. In a stricter isolation level than READ COMMITTED a changed row is a serialization
//! error instead.
//!
//! A grant is only ever read from what `INSERT` and `UPDATE` returned. A request that no statement answers is
//! one whose row was locked, or came, changed or went since the snapshot: `Skipped`.
//!
//! # Why there is no deadlock
//! Only an `INSERT` can wait: for another one of the same key, or for a row of that key that is newer than
//! the snapshot. A batch inserts in key order. [`many`] locks row by row in that order too, and [`general`]
//! locks rows after its inserts. So whoever waits for a key holds only smaller ones, and a circle of them
//! cannot be.

mod general;
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

/// The channel of the table's wake-ups, of both kinds: the same under each of the table's names, and no other table's.
fn channel(table: &str) -> String {
    format!("'dblock_' || '{table}'::regclass::oid")
}

/// What the payload of a notification begins with: a release, and then the key.
pub(super) const RELEASED: char = 'r';

/// The same: nobody is inside any more with a lease, and then that in 36 letters, and the key.
pub(super) const LEFT: char = 'l';

/// Whether somebody waits for a key that has just been released, who is then notified when the statement
/// commits. Only then: notifications make commits wait for one another.
fn wakes(table: &str, wanted: &str) -> String {
    let channel = channel(table);
    format!(
        "CASE WHEN {wanted} THEN pg_notify({channel}, '{RELEASED}' || t.lock_key) IS NOT NULL ELSE false END"
    )
}

/// The columns of a batch of acquires.
const ACQUIRE: [(&str, &str); 8] = [
    ("lock_key", "text"),
    ("new_lease", "uuid"),
    ("new_owner", "uuid"),
    ("ttl", "bigint"),
    ("new_holder", "text"),
    ("wanted_for", "bigint"),
    ("spare_tokens", "bigint"),
    ("reserve", "boolean"),
];

/// The columns of a batch of releases.
const RELEASE: [(&str, &str); 2] = [("lock_key", "text"), ("lease", "uuid")];

/// A batch as a table `r` of `columns`, from parameters that are arrays. It is in key order, as the arrays are.
fn requests(columns: &[(&str, &str)]) -> String {
    let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
    let arrays: Vec<_> = columns
        .iter()
        .zip(1..)
        .map(|((_, kind), i)| format!("${i}::{kind}[]"))
        .collect();
    format!("unnest({}) r({})", arrays.join(", "), names.join(", "))
}

/// The statements of an action.
#[derive(Debug)]
pub(super) struct Statements {
    /// One row with plain parameters, in the state that it usually has. It changes nothing and does not
    /// answer when the row is in another one.
    pub(super) one: Arc<str>,
    /// The same for any number of rows, with arrays.
    pub(super) many: Option<Arc<str>>,
    /// Any number of rows, with arrays, in every state.
    pub(super) general: Arc<str>,
}

/// Every statement for one table.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) acquire: Statements,
    pub(super) extend: Statements,
    pub(super) release: Statements,
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
            acquire: Statements {
                one: one::acquire(&table).into(),
                many: Some(many::acquire(&table).into()),
                general: general::acquire(&table).into(),
            },
            extend: Statements {
                one: one::extend(&table).into(),
                many: None,
                general: general::extend(&table).into(),
            },
            release: Statements {
                one: one::release(&table).into(),
                many: Some(many::release(&table).into()),
                general: general::release(&table).into(),
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
