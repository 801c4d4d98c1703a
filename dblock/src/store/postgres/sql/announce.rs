//! What tells that leases are about to end.

use super::{LEFT, NOW, RELEASE, channel, requests};

/// Notifies for each row that carries its lease, held, and is reserved; answers its key.
///
/// It writes and locks no row. A commit that has only notifications in it is not waited for on disk, but reading a
/// page may tidy it up, and that would be. So the commit is told not to wait, since what it tells is not kept
/// on disk anyway.
pub(super) fn announce(table: &str) -> String {
    let (requests, channel) = (requests(&RELEASE), channel(table));
    format!(
        "
SELECT t.lock_key, pg_notify({channel}, '{LEFT}' || r.lease || t.lock_key),
    set_config('synchronous_commit', 'off', true)
FROM {requests} JOIN {table} t ON t.lock_key = r.lock_key
WHERE t.lease_id = r.lease AND t.reentrant_count > 0 AND t.expire_at > {NOW} AND t.reserved_until > {NOW}"
    )
}
