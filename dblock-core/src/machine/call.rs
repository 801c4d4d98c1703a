//! What a caller wants.

use std::sync::Arc;

use uuid::Uuid;

use super::env::Time;
use crate::options::{LockOptions, NO_LIMIT, Wait};
use crate::store::RecordChange;
use crate::waiting::TellsWait;

/// What a caller wants. It is made once, and shared by all that need to know it.
#[derive(Debug, Clone)]
pub struct Call {
    pub owner: Uuid,
    pub holder: Arc<str>,
    pub options: LockOptions,
    /// When the caller began. It may have waited for other keys before.
    pub since: Time,
    /// When the caller's timeout passes; `None` for a caller that waits for ever.
    pub deadline: Option<Time>,
    /// The call chain holds another lock: it may acquire even while the manager shuts down.
    pub nested: bool,
    pub takes: Takes,
    /// What to tell while the caller waits. The machine does not read it.
    pub tells_wait: Option<TellsWait>,
    /// A change of the key's record that the acquire makes in the same transaction.
    pub begin: Option<Begin>,
}

impl Call {
    /// The caller wants `Busy` as a reply instead of waiting.
    #[inline]
    pub fn is_non_blocking(&self) -> bool {
        self.options.wait == Wait::No
    }

    /// Any number of callers may be inside beside it.
    #[inline]
    pub fn shares_with_all(&self) -> bool {
        self.options.limit == Some(NO_LIMIT)
    }
}

/// Whether a transaction of the caller's takes the key itself, where that is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    No,
    /// While the caller waits alone. Callers that wait together share a lease, which they hand over without the
    /// store.
    Alone,
    /// Whenever the caller is the first one.
    First,
}

/// How a run begins: in the transaction that grants the lock to its caller.
#[derive(Debug, Clone)]
pub struct Begin {
    pub change: Arc<RecordChange>,
    /// Takes it back, in the transaction that releases the lock, if the caller has not entered.
    pub undo: Arc<RecordChange>,
}
