//! What tells that leases are about to end.

use super::{LEFT, NOW, RELEASE, channel, requests};

/// Notifies for each row that carries its lease, held, and is reserved; answers its key.
///
/// It writes and locks no row, and a commit that has only notifications in it is not waited for on disk. Now and then
/// the read tidies its page up, and that is: so one announcement in some twenty takes as long as a release.
pub(super) fn announce(table: &str) -> String {
    let (requests, channel) = (requests(&RELEASE), channel(table));
    format!(
        "
SELECT t.lock_key, pg_notify({channel}, '{LEFT}' || r.lease || t.lock_key)
FROM {requests} JOIN {table} t ON t.lock_key = r.lock_key
WHERE t.lease_id = r.lease AND t.reentrant_count > 0 AND t.expire_at > {NOW} AND t.reserved_until > {NOW}"
    )
}
