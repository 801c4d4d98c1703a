//! What tells that leases are about to end.

use super::{LEFT, NOW, channel, requests};

/// The columns of a batch.
const LEAVE: [(&str, &str); 3] = [("lock_key", "text"), ("lease", "uuid"), ("word", "uuid")];

/// For one lease. Parameters: key, lease, word. Answers as [`many`].
pub(super) fn one(table: &str) -> String {
    tell(table, &format!("{table} t"), "$1", "$2", "$3")
}

/// For any number of them. Parameters: an array of each. Answers the keys of the rows that were told of.
pub(super) fn many(table: &str) -> String {
    let rows = format!("{} JOIN {table} t ON t.lock_key = r.lock_key", requests(&LEAVE));
    tell(table, &rows, "r.lock_key", "r.lease", "r.word")
}

/// Notifies for each row that carries its lease, held, and is reserved.
///
/// It writes and locks no row. A commit that has only notifications in it is not waited for on disk, as nothing in
/// it is kept there. But reading a page may tidy it up, which is logged, and then it would be: so this one
/// transaction does not wait. What a lock stands on (the reservation, the release, the claim) is in others.
fn tell(table: &str, rows: &str, key: &str, lease: &str, word: &str) -> String {
    let channel = channel(table);
    format!(
        "
SELECT t.lock_key, pg_notify({channel}, '{LEFT}' || {word} || t.lock_key),
    set_config('synchronous_commit', 'off', true)
FROM {rows}
WHERE t.lock_key = {key} AND t.lease_id = {lease} AND t.reentrant_count > 0 AND t.expire_at > {NOW} AND t.reserved_until > {NOW}"
    )
}
