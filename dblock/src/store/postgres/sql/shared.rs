//! Shared holds: rows are read, the rules decide in the program, and what they decide is written.
//!
//! Nothing is locked between the two statements. [`write`] locks the row and requires that it is still the version that
//! was read: its `xmin`, which each change of a row sets anew. So what was decided still holds, and in between nobody
//! waits for us, nor for a program that has stopped there.

use super::rest::qualified;
use super::{NOW, PASSED_ON, WITHOUT_FLUSH, channel, requests, table_of};
use crate::store::sql_row::{COLUMNS, SHARED};

/// The columns that name a version of a row.
const VERSION: [(&str, &str); 2] = [("lock_key", "text"), ("version", "text")];

/// The type of each of [`COLUMNS`], which the column `shared` follows.
const TYPES: [&str; 19] = [
    "text", "uuid", "integer", "bigint", "uuid", "bigint", "bigint", "bigint", "bigint", "text", "boolean",
    "uuid", "uuid", "text", "bigint", "bigint", "bigint", "bigint", "text",
];

/// [`COLUMNS`] and `shared`, each with its type.
fn columns() -> Vec<(&'static str, &'static str)> {
    COLUMNS.split(", ").chain(["shared"]).zip(TYPES).collect()
}

fn names<'c>(columns: &[(&'c str, &str)]) -> Vec<&'c str> {
    columns.iter().map(|(name, _)| *name).collect()
}

/// Parameters: the keys. Answers for each of them: the columns, NULL where there is no row, and the clock; then by name
/// [`SHARED`], the `version`, NULL where there is no row, and the key that was `asked` for.
pub(super) fn read(table: &str) -> String {
    let keys = requests(&[("lock_key", "text")]);
    let columns = qualified("t");
    format!(
        "SELECT {columns}, {NOW}, t.{SHARED}, t.xmin::text AS version, r.lock_key AS asked
FROM {keys} LEFT JOIN {table} t ON t.lock_key = r.lock_key"
    )
}

/// Locks the rows of these versions that nobody else has locked.
fn locked(table: &str, requests: &str) -> String {
    format!(
        "locked AS MATERIALIZED (
    SELECT r.*, t.ctid AS place FROM {requests} JOIN {table} t ON t.lock_key = r.lock_key
    WHERE t.xmin::text = r.version FOR UPDATE OF t SKIP LOCKED
)"
    )
}

/// Parameters: key and version of each row. Returns the keys of those that are still so, and that nobody has locked.
pub(super) fn unchanged(table: &str) -> String {
    let locked = locked(table, &requests(&VERSION));
    format!("WITH {locked} SELECT lock_key FROM locked WHERE (SELECT {WITHOUT_FLUSH})")
}

/// Parameters: the columns and `shared`, the version, what to tell those that listen, or NULL, whether the row is passed
/// on; and whether the commit waits for the disk. Returns the keys of the rows that were written.
///
/// A lease that is passed on begins with this statement, and not when the row was read: the successor may have asked
/// again in between, without changing the row, and counts its lease from then. It must still be the successor. So the
/// notification of it is made here, and the text for it only says that there is to be one.
pub(super) fn write(table: &str) -> String {
    let columns = columns();
    let flushes = columns.len() + 4;
    let mut asked = columns.clone();
    asked.extend([VERSION[1], ("tells", "text"), ("passes_on", "boolean")]);
    let locked = locked(table, &requests(&asked));
    let since = "CASE WHEN l.passes_on THEN l.at - l.acquired_at ELSE 0 END";
    let token = "CASE WHEN l.passes_on THEN greatest(l.fence_token, l.at) ELSE l.fence_token END";
    let change = |name: &&str| match *name {
        "acquired_at" | "expire_at" => format!("{name} = l.{name} + {since}"),
        "fence_token" => format!("{name} = {token}"),
        "fence_ceiling" => format!("{name} = {token} + (l.fence_ceiling - l.fence_token)"),
        _ => format!("{name} = l.{name}"),
    };
    let changes: Vec<_> = names(&columns).iter().skip(1).map(change).collect();
    let (changes, channel) = (changes.join(", "), channel(table));
    format!(
        "WITH {locked}, timed AS MATERIALIZED (
    SELECT *, {NOW} AS at FROM locked
)
UPDATE {table} t SET {changes}
FROM timed l
WHERE t.ctid = l.place AND (NOT l.passes_on OR t.next_until > l.at)
    AND (SELECT CASE WHEN ${flushes} THEN true ELSE {WITHOUT_FLUSH} END)
RETURNING t.lock_key, CASE WHEN l.tells IS NOT NULL THEN pg_catalog.pg_notify({channel}, CASE WHEN l.passes_on
    THEN pg_catalog.concat('{PASSED_ON}', t.lease_id, t.fence_token, ' ', t.lock_key) ELSE l.tells END) IS NOT NULL END"
    )
}

/// Parameters: the columns and `shared`. Returns the keys of the rows that were inserted. It inserts in the order of the
/// keys, and may wait for another insert of one of them.
pub(super) fn insert(table: &str) -> String {
    let columns = columns();
    let numbered: Vec<_> = columns.iter().copied().zip(1..).collect();
    let (rows, names) = (table_of(&numbered), names(&columns).join(", "));
    format!(
        "INSERT INTO {table} ({names}) SELECT {names} FROM {rows} ORDER BY lock_key COLLATE \"C\"
ON CONFLICT (lock_key) DO NOTHING RETURNING lock_key"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_its_type() {
        let columns = columns();
        assert_eq!(columns.len(), COLUMNS.split(", ").count() + 1);
        for expected in [
            ("next_until", "bigint"),
            ("revoked", "boolean"),
            ("shared", "text"),
        ] {
            assert!(columns.contains(&expected), "{columns:?}");
        }
    }
}
