//! The events that a key's machine is stepped with.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::held::Confirm;
use super::wait_queue::Waiter;
use crate::engine::core::out::Kind;
use crate::engine::core::ownership::Ownership;
use crate::store::{Outcome, RecordChange, StoreError};

/// An event of a key.
#[derive(Debug)]
pub(crate) enum Event<C> {
    /// A caller wants the lock.
    Acquire(Box<Waiter<C>>),
    /// The caller with this number, from [`Out::waiter`](crate::engine::core::out::Out::waiter), is gone.
    GiveUp(u64),
    /// A re-entry: one more hold. The reply comes when the store confirms that the lease is still held.
    Enter(Arc<Ownership>, Option<Confirm<C>>),
    /// A hold ends. `in_order`: the body returned. The reply comes when the store has confirmed it.
    Leave {
        ownership: Arc<Ownership>,
        in_order: bool,
        confirm: Option<Confirm<C>>,
    },
    /// A fence check: no local hand-over from here on. The reply comes when the row names the owner.
    Pin(Arc<Ownership>, Option<Confirm<C>>),
    /// The owner has another ttl from now on. The reply comes when the lease has been extended by it.
    SetTtl(Arc<Ownership>, Duration, Confirm<C>),
    /// A run of the owner's begins, by a write of its own: this change takes it back. Refused once the lease
    /// has ended.
    #[cfg_attr(not(feature = "run_once"), allow(dead_code, reason = "only runs begin"))]
    Begin(Arc<Ownership>, Arc<RecordChange>),
    /// The body of a run begins: that is not taken back any more. Refused once the lease has ended.
    #[cfg_attr(not(feature = "run_once"), allow(dead_code, reason = "only runs begin"))]
    Begun(Arc<Ownership>),
    /// The last hold of the owner's ends with something that is on its way: no other hold is added from here
    /// on. Refused when there is one.
    #[cfg_attr(
        not(any(feature = "sql", feature = "run_once")),
        allow(dead_code, reason = "only runs end with their record")
    )]
    Close(Arc<Ownership>),
    /// That has failed.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "only a transaction of the user's can be rolled back")
    )]
    Reopen(Arc<Ownership>),
    /// A fence check has found that the row no longer names the lease.
    #[cfg_attr(
        not(any(feature = "sql", feature = "run_once")),
        allow(dead_code, reason = "a fence check needs a database")
    )]
    Gone(Arc<Ownership>),
    /// A transaction of the owner's has freed the row, and keeps it locked until it ends.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    KeptInTransaction(Arc<Ownership>),
    /// That transaction has committed: the key is free.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    Committed(Arc<Ownership>),
    /// A caller wants the lock in the transaction that keeps the row of this lease locked.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "a transaction needs a database")
    )]
    EnterAgain(Uuid, Box<Waiter<C>>),
    /// The request for this key may be sent now, if it is one of these kinds.
    Send(&'static [Kind]),
    /// The answer to the request on its way.
    Answer(Result<Outcome, StoreError>),
    /// A wake-up said that the key was freed, or a wake-up may have been missed.
    WokenUp,
    /// A wake-up said that the key was passed on, with this token, to the lease with this id, ours or not.
    PassedOn(Uuid, i64),
    /// No wake-ups arrive any more.
    WakeUpsLost,
    /// Time has passed.
    Time,
    /// The manager shuts down: callers that hold no other lock are refused.
    Refuse,
    /// The lease is ended, and all callers are refused.
    Stop,
    /// As `Stop`, and for good: nothing is sent any more, and no answer comes.
    Abort,
}
