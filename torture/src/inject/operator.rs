//! What an operator does to locks.

use super::Injector;
use crate::history::Event;
use crate::worker::key_name;

impl Injector<'_> {
    /// Frees a key by force. Whether it was held, as far as the operator was told.
    pub(super) async fn force_release(&self, key: usize) -> bool {
        let key = key_name(key);
        self.journal.write(Event::Forcing { key: key.clone() });
        let done = self.locks.force_release(&key).await;
        self.journal.write(Event::Forced {
            key,
            known: done.is_ok(),
        });
        done.unwrap_or(false)
    }

    /// Revokes a lease. Whether the key was held, as far as the operator was told.
    pub(super) async fn revoke(&self, key: usize) -> bool {
        self.locks.revoke(key_name(key)).await.unwrap_or(false)
    }
}
