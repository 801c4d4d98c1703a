//! Which open transaction has a row locked.
//!
//! A row that a transaction has locked or written carries the transaction's id as its `xmax`, and everybody sees
//! it, although nobody sees what was written. `pg_xact_status` knows whether that transaction is still open. It
//! also knows the ids of sub-transactions, which `pg_locks` does not show.
//!
//! The usual row says at once that nobody has it: its `xmax` is 0, or its own `xmin`, because whoever wrote it
//! had locked it before. So most rows cost a comparison, and the server's sessions are read only for a row
//! whose transaction is open.
//!
//! # What `xmax` does not say
//! - *Whether the row was written or only locked.* It makes no difference: while somebody has it locked, nobody
//!   else gets the key.
//! - *Whether it is an id at all.* If several transactions lock a row in shared mode, or one locks it outside of a
//!   savepoint and writes it inside, `xmax` is the number of their group. It may be that of a transaction that
//!   ended long ago. So an `xmax` of a transaction that is not open is [`DOUBT`]. For one key the row's lock is then
//!   tried, by [`probe`]; a list lets it be.
//! - *All 64 bits*, which `pg_xact_status` wants, and it fails for an id that was not given yet. `age` counts from the
//!   next id, as it is when the statement first asks. The snapshot has all bits of an id, but not the newest one: ids
//!   of transactions that are running may be ahead of it. An id that is ahead of the next one was given since, or is
//!   no id, which is `DOUBT` too.
//!
//! # Our own statements
//! They lock rows for a moment, and one that changes nothing must not make a free key seem held. So a session
//! of dblock's does not count while it executes a statement of less than [`OWN_STATEMENT`]. Where its state may
//! not be seen, it does not count either.

use super::{NOW, WITHOUT_FLUSH};

/// The first letter of [`transaction`]: a session has it. Its process, its start in µs or nothing, and its
/// application follow, each after a space.
pub(in super::super) const SESSION: char = 's';
/// A prepared transaction has it. Its name follows.
pub(in super::super) const PREPARED: char = 'p';
/// An open transaction has it, and that is all that is known.
pub(in super::super) const UNKNOWN: char = 'u';
/// Perhaps somebody has it. The row's `xmax` follows.
pub(in super::super) const DOUBT: char = 'd';

/// How long a statement of ours may take, in µs, before it counts as a transaction.
const OWN_STATEMENT: &str = "1000000";

/// The name of our sessions.
pub(in super::super) const OWN_APPLICATION: &str = "dblock";

/// The tables that [`transaction`] needs. The second is read only when it is needed.
pub(super) fn with() -> String {
    format!(
        "clock AS MATERIALIZED (
    SELECT {NOW} AS now, low + ((age('3'::xid)::bigint + 3 - low) & 4294967295) AS next
    FROM (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS low) snapshot
), sessions AS MATERIALIZED (
    SELECT pid, backend_xid AS xid, application_name AS name, state,
        (date_part('epoch', xact_start) * 1000000)::bigint AS since
    FROM pg_stat_get_activity(NULL) WHERE backend_xid IS NOT NULL
)"
    )
}

/// Whether [`transaction`] may be anything but empty: that of the usual row is, and costs nothing.
pub(super) fn may_be_locked(row: &str) -> String {
    format!("({row}.xmax <> '0'::xid AND {row}.xmax <> {row}.xmin)")
}

/// Which open transaction has the row of this table locked: see the letters above. Empty if none has.
pub(super) fn transaction(row: &str) -> String {
    // A number below 3 is no transaction, and one below 0 cannot be written.
    let status = format!(
        "CASE WHEN age({row}.xmax) BETWEEN 1 AND next - 3 THEN pg_xact_status((next - age({row}.xmax))::text::xid8) END"
    );
    let maybe = may_be_locked(row);
    let doubt = format!("concat('{DOUBT}', {row}.xmax)");
    let session = format!("concat('{SESSION}', pid, ' ', since, ' ', name)");
    format!(
        "CASE
        WHEN NOT {maybe} THEN ''
        WHEN ({status}) IS DISTINCT FROM 'in progress' THEN {doubt}
        ELSE coalesce(
            (SELECT CASE
                WHEN name = '{OWN_APPLICATION}' AND coalesce(state = 'active' AND since > now - {OWN_STATEMENT}, true) THEN ''
                ELSE {session} END
            FROM sessions WHERE xid = {row}.xmax LIMIT 1),
            (SELECT concat('{PREPARED}', gid) FROM pg_prepared_xact() WHERE transaction = {row}.xmax LIMIT 1),
            -- A sub-transaction: that of the only session that has the table in use, if there is only one. A
            -- prepared transaction has no session.
            (SELECT min(CASE WHEN xid IS NOT NULL THEN {session} END) FROM (SELECT DISTINCT pid FROM pg_lock_status()
                WHERE relation = {row}.tableoid AND mode IN ('RowShareLock', 'RowExclusiveLock')
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) users(user_pid)
            LEFT JOIN sessions ON pid = user_pid WHERE user_pid IS NULL OR xid IS NOT NULL
            HAVING count(*) = 1 AND ({status}) = 'in progress'),
            -- It may have ended since its session was looked for.
            CASE WHEN ({status}) = 'in progress' THEN '{UNKNOWN}' ELSE {doubt} END)
        END"
    )
}

/// Whether a column of [`transaction`] names one.
pub(super) fn is_kept(column: &str) -> String {
    format!("(left({column}, 1) IN ('{SESSION}', '{PREPARED}', '{UNKNOWN}'))")
}

/// Parameters: key. Returns a row if nobody has it locked. It locks the row for a moment.
pub(super) fn probe(table: &str) -> String {
    format!("SELECT 1 FROM {table} WHERE lock_key = $1 AND (SELECT {WITHOUT_FLUSH}) FOR UPDATE SKIP LOCKED")
}
