//! What a caller wants.

use std::sync::Arc;

use uuid::Uuid;

use super::env::Time;
use crate::options::{LockOptions, Wait};
use crate::store::RecordChange;

/// What a caller wants. It is made once, and shared by all that need to know it.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) owner: Uuid,
    pub(crate) holder: Arc<str>,
    pub(crate) options: LockOptions,
    /// When the caller's timeout passes; `None` for a caller that waits for ever.
    pub(crate) deadline: Option<Time>,
    /// The call chain holds another lock: it may acquire even while the manager shuts down.
    pub(crate) nested: bool,
    /// The change that the acquire makes beside the lock.
    pub(crate) begin: Option<Begin>,
}

impl Call {
    /// The caller wants `Busy` as a reply instead of waiting.
    pub(crate) fn is_non_blocking(&self) -> bool {
        self.options.wait == Wait::No
    }
}

/// How a run begins: in the transaction that grants the lock to its caller.
#[derive(Debug, Clone)]
#[cfg_attr(
    not(feature = "run_once"),
    allow(dead_code, reason = "only runs begin with the lock")
)]
pub(crate) struct Begin {
    pub(crate) change: Arc<RecordChange>,
    /// Takes it back, in the transaction that releases the lock, if the caller has not entered.
    pub(crate) undo: Arc<RecordChange>,
}
