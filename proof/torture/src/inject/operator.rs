//! The operator's calls about locks.

use std::time::Duration;

use dblock::InspectFilter;
use tokio::time::{Instant, sleep};

use super::Injector;
use crate::history::Event;
use crate::worker::key_names;

/// How long an operator waits for somebody to hold the key.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Injector<'_> {
    /// Frees a key by force. Whether the key was held, as far as the operator was told.
    pub(super) async fn force_release(&self, key: usize) -> bool {
        let key = key_names().swap_remove(key);
        if !self.is_held(&key).await {
            return false;
        }
        self.journal.write(Event::Forcing { key: key.clone() });
        let done = self.locks.admin().force_release(&key).await;
        let freed = done.ok();
        self.journal.write(Event::Forced { key, freed });
        freed.unwrap_or(false)
    }

    /// Revokes a lease. Whether the key was held, as far as the operator was told.
    pub(super) async fn revoke(&self, key: usize) -> bool {
        let key = key_names().swap_remove(key);
        self.is_held(&key).await && self.locks.admin().revoke(key).await.unwrap_or(false)
    }

    /// Waits until somebody holds the key.
    async fn is_held(&self, key: &str) -> bool {
        let give_up = Instant::now() + TIMEOUT;
        while Instant::now() < give_up {
            let rows = self.locks.admin().list(InspectFilter::new().prefix(key)).await;
            if rows.is_ok_and(|rows| !rows.is_empty()) {
                return true;
            }
            sleep(Duration::from_millis(5)).await;
        }
        false
    }
}
