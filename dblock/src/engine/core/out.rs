//! What a step wants done. It is carried out after the key's mutex is let go.

use std::sync::Arc;
use std::time::Duration;

use super::key::{Machine, Waiter};
use super::ownership::Ownership;
use super::time::Time;
use crate::error::LostReason;
use crate::store::{Holder, Request, StoreError};

pub(crate) use crate::store::Kind;

/// What a step wants done. `C` is what a caller is answered with: a channel, or a number in a simulation.
#[derive(Debug)]
pub(crate) struct Out<C> {
    pub(crate) replies: Vec<Reply<C>>,
    /// These have ended or were revoked: whoever watches them is woken.
    pub(crate) changed: Vec<Arc<Ownership>>,
    pub(crate) notes: Vec<Note>,
    /// The key has something to send on this lane, and is not listed there yet.
    pub(crate) ready: Option<Kind>,
    /// The request that [`Event::Send`](super::key::Event::Send) asked for.
    pub(crate) request: Option<Request>,
    /// How long the store may take for it, if that is less than usual.
    pub(crate) time_limit: Option<Duration>,
    /// When time has to pass without another event.
    pub(crate) look_at: Option<Time>,
    /// Callers wait for a key that another process has.
    pub(crate) wants_wake_ups: bool,
    /// The number of the caller that has just come.
    pub(crate) waiter: u64,
    /// The hold was added that was asked for.
    pub(crate) entered: bool,
    /// Nothing is held, wanted or on its way.
    pub(crate) idle: bool,
    /// A machine that panicked: to be dropped where no lock is held.
    pub(crate) broken: Option<Box<Machine<C>>>,
}

impl<C> Default for Out<C> {
    fn default() -> Self {
        Self {
            replies: Vec::new(),
            changed: Vec::new(),
            notes: Vec::new(),
            ready: None,
            request: None,
            time_limit: None,
            look_at: None,
            wants_wake_ups: false,
            waiter: 0,
            entered: false,
            idle: false,
            broken: None,
        }
    }
}

/// The answer to a caller.
#[derive(Debug)]
pub(crate) enum Reply<C> {
    /// The caller has the lock.
    Granted(Box<Waiter<C>>, Arc<Ownership>),
    Refused(Box<Waiter<C>>, Refusal),
    /// The row says what the caller did.
    Confirmed(C),
    /// The lease had ended before.
    Lost(C, LostReason),
    /// The store did not say so in time. The last error, if there was one.
    Unconfirmed(C, Option<StoreError>),
}

/// Why a caller does not get the lock.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    /// Somebody holds it.
    Held(Option<Holder>),
    /// Its row is locked by somebody's transaction.
    RowLocked,
    /// The store has not said anything yet.
    NoAnswer,
    Store(StoreError),
    Shutdown,
}

/// What the store said last of a key.
#[derive(Debug)]
pub(crate) enum LastAnswer {
    Busy(Option<Holder>),
    RowLocked,
    Failed(StoreError),
}

/// For the log and for metrics.
#[derive(Debug)]
pub(crate) enum Note {
    TakenOver(Arc<Ownership>, Holder),
    Lost(Arc<Ownership>, LostReason),
    Revoked(Arc<Ownership>, Duration),
    Released(Arc<Ownership>),
    /// The row did not know the lease any more when it was to be released.
    GoneBeforeRelease(Arc<Ownership>),
    /// A renewal or a release failed. `again`: and so did the one before it.
    Failed {
        ownership: Arc<Ownership>,
        kind: Kind,
        error: StoreError,
        again: bool,
    },
    RenewedAgain(Arc<Ownership>),
    /// How late a renewal was that has just been confirmed.
    RenewalLag(Duration),
    /// A row that `hold_min` keeps busy was left to expire by itself.
    LeftBusy(Arc<Ownership>),
}
