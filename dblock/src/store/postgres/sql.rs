//! The SQL text of the PostgreSQL store.
//!
//! An action has up to three statements. [`one`] and [`many`] expect the usual state of a row, and answer
//! nothing for other states. [`general`] is then asked for those.
//!
//! # Why a statement gives one right answer to each request
//! The parts of a statement share one snapshot. Rows are found in it, then locked with `SKIP LOCKED` in their
//! newest version: a row that was changed after the snapshot is either committed, and read anew, or still locked,
//! and skipped. The lock's conditions are checked on
//! the locked version, which nobody else changes until the statement ends. Then the clock is read, row by row.
//!
//! An `UPDATE` finds its row by the `ctid` of the locked version. If that is newer than the snapshot, it
//! finds nothing, and the request is not answered. An upsert finds the newest version by key, and checks its
//! conditions on that. In a stricter isolation level than READ COMMITTED a changed row is a serialization
//! error instead.
//!
//! A fresh grant is read only from what `INSERT` and `UPDATE` returned. A repeated one, of a row that has this
//! lease already, is read from the locked row. If no statement answers a request, its row was
//! locked, or was inserted, changed or deleted after the snapshot: `Skipped`.
//!
//! # Names
//! Our sessions look up functions, types and operators in `pg_catalog` first (`session.rs`), so no other
//! schema in the `search_path` can replace them. The fence check runs in a user's session and names each in
//! full; so do the listener's statements.
//!
//! # Why there is no deadlock
//! Only an `INSERT` can wait: for another one of the same key, or for a row of that key that is newer than the
//! snapshot. A batch inserts in key order. [`many`] locks row by row in that order too, and [`general`] locks
//! rows after its inserts. So a statement that waits for a key holds only smaller keys, and no deadlock is
//! possible.

mod general;
mod many;
mod one;
mod open;
mod record;
mod rest;
mod shared;
mod take;

use std::sync::Arc;

pub(super) use open::{DOUBT, OWN_APPLICATION, PREPARED, SESSION, UNKNOWN};
#[cfg(feature = "run_once")]
pub(super) use record::{complete_in, is_another_attempt};
pub(super) use rest::{
    BELOW_SAVEPOINT, MARK, MARKS, NOT_IN_SNAPSHOT, RELEASED_WHOLE, check_lease, reads_release, release_in,
    verify,
};
pub(super) use take::{OVER, TAKEN_BELOW_SAVEPOINT, commit, take, take_free};

use crate::store::table::TableName;

/// µs since the Unix epoch. `now()` would be the start of the transaction.
///
/// `date_part` is in double precision. Each µs up to the year 2106 is exact, because the errors of the
/// quotient and of the product together stay below half a µs. `extract` would be slow, because it returns
/// `numeric`.
const NOW: &str = "(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) \
    OPERATOR(pg_catalog.*) 1000000::double precision)::bigint";

/// The largest `bigint`. A key whose tokens have reached it is refused.
const LAST_TOKEN: i64 = i64::MAX;

/// Clears the successor: for the end of every lease, and for every new one.
const NO_SUCCESSOR: &str = "next_lease = NULL, next_owner = NULL, next_holder = NULL, next_ttl = NULL, \
    next_spare = NULL, next_since = NULL, next_until = 0";

/// Always true. Makes the commit of the statement wait neither for the disk nor for a standby: for a release
/// that a crash of the server [may forget](crate::store::rules::may_be_forgotten).
const WITHOUT_FLUSH: &str = "pg_catalog.set_config('synchronous_commit', 'off', true) = 'off'";

/// Whether the commit of a release waits for the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Commit {
    Flushed,
    /// By [`WITHOUT_FLUSH`], unless a row is passed on.
    Unflushed,
}

/// The ceiling of a lease whose token is `token`. PostgreSQL may compute the difference in a branch of a
/// CASE that is not used, so `greatest(…, 0)` keeps it from overflowing.
fn ceiling(token: &str, spare: &str) -> String {
    format!("{token} + least({spare}, {LAST_TOKEN} - greatest({token}, 0))")
}

/// The channel of the table's wake-ups. It is the same under each name of the table, and no other table has it.
fn channel(table: &str) -> String {
    format!("pg_catalog.concat('dblock_', '{table}'::pg_catalog.regclass::pg_catalog.oid)")
}

/// First letter of a release's payload. The key follows.
pub(super) const RELEASED: char = 'r';

/// First letter of a pass-on's payload. The lease in 36 letters, its token, a space, and the key follow.
pub(super) const PASSED_ON: char = 'p';

/// First letter of the payload for those who wait for a shared lock. How many share it, a space, the lease that comes first
/// in 36 letters and for how many µs it has waited, or nothing, a space, and the key follow.
pub(super) const MAY_ENTER: char = 's';

/// Whether a statement notifies those that wait for its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notify {
    Waiters,
    /// For a server that cannot take another notification.
    Nobody,
}

/// A column that nobody reads. With the commit of the statement it notifies those that wait for the row `t`,
/// which was just freed; only if there are any, because notifications make commits wait for one another.
fn tell_freed(table: &str, wanted: &str, notify: Notify) -> String {
    tell_if(table, wanted, &format!("'{RELEASED}', t.lock_key"), notify)
}

/// A column that sends these parts of a payload where the condition holds.
fn tell_if(table: &str, condition: &str, payload: &str, notify: Notify) -> String {
    if notify == Notify::Nobody {
        return "NULL".to_owned();
    }
    let channel = channel(table);
    format!(
        "CASE WHEN {condition}
        THEN pg_catalog.pg_notify({channel}, pg_catalog.concat({payload})) IS NOT NULL END"
    )
}

/// As [`tell_freed`], and also notifies the successor of the row `t`, if `passed_on` says that it was passed
/// on.
fn tell(table: &str, passed_on: &str, freed_and_wanted: &str, notify: Notify) -> String {
    let payload = format!("'{PASSED_ON}', t.lease_id, t.fence_token, ' ', t.lock_key");
    let passed_on = tell_if(table, passed_on, &payload, notify);
    let freed = tell_freed(table, freed_and_wanted, notify);
    format!("coalesce({passed_on}, {freed})")
}

/// As [`tell_freed`], for a row `t` whose successor has given up: others may come first now. It tells those who wait for a
/// shared lock. The lease of a phase, as [`rules`](crate::store::rules) make it, has the first bit set, and so has that
/// of some tickets.
fn tell_withdrawn(table: &str, wanted: &str, notify: Notify) -> String {
    let shared =
        format!("{wanted} AND t.lease_id >= '80000000-0000-0000-0000-000000000000'::pg_catalog.uuid");
    tell_if(
        table,
        &shared,
        &format!("'{MAY_ENTER}', t.reentrant_count, '  ', t.lock_key"),
        notify,
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
    ("waited", "bigint"),
];

/// The columns of a batch of releases.
const RELEASE: [(&str, &str); 2] = [("lock_key", "text"), ("lease", "uuid")];

/// A batch as a table `r` of `columns`, from parameters that are arrays in key order.
fn requests(columns: &[(&str, &str)]) -> String {
    let numbered: Vec<_> = columns.iter().copied().zip(1..).collect();
    table_of(&numbered)
}

/// A table `r` of columns, from the parameters of these numbers, which are arrays.
fn table_of(columns: &[((&str, &str), usize)]) -> String {
    let names: Vec<_> = columns.iter().map(|((name, _), _)| *name).collect();
    let arrays: Vec<_> = columns
        .iter()
        .map(|((_, kind), i)| format!("${i}::{kind}[]"))
        .collect();
    format!("unnest({}) r({})", arrays.join(", "), names.join(", "))
}

/// A statement: what follows `WITH`, the answer, and its columns.
struct Parts {
    with: String,
    answers: String,
    columns: &'static str,
}

impl Parts {
    fn text(&self) -> String {
        let Self { with, answers, .. } = self;
        if with.is_empty() {
            answers.clone()
        } else {
            format!("WITH {with}\n{answers}")
        }
    }
}

/// The statements of one action.
#[derive(Debug)]
pub(super) struct Statements {
    /// One row with plain parameters, in its usual state. In any other state it changes nothing and does not
    /// answer.
    pub(super) one: Option<Arc<str>>,
    /// Any number of rows in their usual state, with arrays.
    pub(super) many: Option<Arc<str>>,
    /// Any number of rows, with arrays, in every state.
    pub(super) general: Arc<str>,
    /// As `general`, without notifications.
    pub(super) quiet: Option<Arc<str>>,
}

/// The statements for shared holds.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) read: Arc<str>,
    pub(super) unchanged: Arc<str>,
    pub(super) write: Arc<str>,
    pub(super) insert: Arc<str>,
}

/// Every statement for one table.
#[derive(Debug)]
pub(super) struct Sql {
    pub(super) acquire: Statements,
    pub(super) extend: Statements,
    pub(super) release: Statements,
    pub(super) transfer: Statements,
    /// Acquires and releases that also change records.
    pub(super) acquire_recorded: Statements,
    pub(super) release_recorded: Statements,
    /// For shared holds.
    pub(super) shared: Shared,
    pub(super) rows: Arc<str>,
    pub(super) make_free_rows: Arc<str>,
    pub(super) row: Arc<str>,
    pub(super) probe: Arc<str>,
    pub(super) inspect: Arc<str>,
    pub(super) inspect_urgent: Arc<str>,
    pub(super) revoke: Arc<str>,
    pub(super) force_release: Arc<str>,
    pub(super) force_release_quiet: Arc<str>,
    pub(super) purge: Arc<str>,
    pub(super) channel: Arc<str>,
    pub(super) version: Arc<str>,
    pub(super) records: record::Statements,
}

impl Sql {
    pub(super) fn new(table: &TableName) -> Self {
        let (version_table, record_table) = (table.quoted_version('"'), table.quoted_record('"'));
        let table = table.quoted('"');
        let (acquire_one, acquire_many) = (one::acquire(&table), many::acquire(&table));
        let acquire = general::acquire(&table);
        let release = |commit, notify| general::release(&table, commit, notify);
        let plain = |notify| release(Commit::Unflushed, notify).text().into();
        // A record must not be lost.
        let recorded = |notify| record::with_release(&release(Commit::Flushed, notify), &record_table).into();
        let force_release = |notify| rest::force_release(&table, notify).into();
        Self {
            acquire_recorded: Statements {
                one: Some(record::with_one_acquire(&acquire_one, &record_table).into()),
                many: Some(record::with_acquire(&acquire_many, &record_table).into()),
                general: record::with_acquire(&acquire, &record_table).into(),
                quiet: None,
            },
            release_recorded: Statements {
                one: None,
                many: None,
                general: recorded(Notify::Waiters),
                quiet: Some(recorded(Notify::Nobody)),
            },
            acquire: Statements {
                one: Some(acquire_one.text().into()),
                many: Some(acquire_many.text().into()),
                general: acquire.text().into(),
                quiet: None,
            },
            extend: Statements {
                one: Some(one::extend(&table).into()),
                many: None,
                general: general::extend(&table).into(),
                quiet: None,
            },
            release: Statements {
                one: Some(one::release(&table).into()),
                many: Some(many::release(&table).into()),
                general: plain(Notify::Waiters),
                quiet: Some(plain(Notify::Nobody)),
            },
            transfer: Statements {
                one: None,
                many: None,
                general: general::transfer(&table).into(),
                quiet: None,
            },
            shared: Shared {
                read: shared::read(&table).into(),
                unchanged: shared::unchanged(&table).into(),
                write: shared::write(&table).into(),
                insert: shared::insert(&table).into(),
            },
            rows: rest::rows(&table).into(),
            make_free_rows: take::make_free_rows(&table).into(),
            row: rest::row(&table).into(),
            probe: open::probe(&table).into(),
            inspect: rest::inspect(&table).into(),
            inspect_urgent: rest::inspect_urgent(&table).into(),
            revoke: rest::revoke(&table).into(),
            force_release: force_release(Notify::Waiters),
            force_release_quiet: force_release(Notify::Nobody),
            purge: rest::purge(&table).into(),
            channel: format!("SELECT {}", channel(&table)).into(),
            records: record::Statements::new(&record_table, &table),
            // The first one fails if the lock table is missing, or is somebody else's.
            version: format!(
                "SELECT lock_key, fence_ceiling FROM {table} LIMIT 0; \
                 SELECT version, min_client FROM {version_table}"
            )
            .into(),
        }
    }
}
