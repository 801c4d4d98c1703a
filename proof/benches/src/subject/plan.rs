//! How a subject is used.

use std::time::Duration;

/// The lease of every lock that has one.
pub(crate) const TTL: Duration = Duration::from_secs(30);

/// Longer than any wait of a scenario that goes well.
pub(crate) const TIMEOUT: Duration = Duration::from_mins(1);

/// The size of a pool that was not tried out.
pub(crate) const POOL: usize = 16;

/// How a subject will be used, so that each can choose its best settings for that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    /// Tasks that lock at the same time.
    pub(crate) tasks: usize,
    /// Whether they want the same key.
    pub(crate) contended: bool,
    /// Whether each lock is of a key that was never locked before.
    pub(crate) new_keys: bool,
    /// The most connections of a library that brings a pool, where nothing else decides them.
    pub(crate) pool: usize,
}

impl Use {
    /// Tasks with keys of their own.
    pub(crate) fn apart(tasks: usize) -> Self {
        Self {
            tasks,
            contended: false,
            new_keys: false,
            pool: POOL,
        }
    }

    /// Tasks that want the same key.
    pub(crate) fn contended(tasks: usize) -> Self {
        Self {
            contended: true,
            ..Self::apart(tasks)
        }
    }

    /// Connections of a library whose locks, and waiters, occupy one each.
    pub(super) fn session_connections(self) -> anyhow::Result<u32> {
        let connections = if self.contended {
            self.tasks
        } else {
            self.tasks.min(self.pool)
        };
        Ok(u32::try_from(connections)?)
    }
}
