//! The output of a step: what it wants done. It is carried out after the key's mutex is released.

use std::sync::Arc;
use std::time::Duration;

use super::key::Waiter;
use super::ownership::Ownership;
use super::time::Time;
use crate::error::LostReason;
use crate::store::{Holder, Request, StoreError};

pub(crate) use crate::store::Kind;

/// A request that is on its way from here on.
#[derive(Debug)]
pub(crate) struct Transmit {
    pub(crate) request: Request,
    /// Time limit of the store for it, if shorter than usual.
    pub(crate) time_limit: Option<Duration>,
}

/// What a machine wants done. `C` is the means to reply to a caller: a channel, or a number in
/// a simulation.
#[derive(Debug)]
pub(crate) struct Out<C> {
    pub(crate) replies: Vec<Reply<C>>,
    pub(crate) notes: Vec<Note>,
    /// The key has something to send on this lane, and is not listed there yet.
    pub(crate) ready: Option<Kind>,
    /// When to step again if no other event comes first.
    pub(crate) look_at: Option<Time>,
    /// Callers wait for a key that another process holds.
    pub(crate) wants_wake_ups: bool,
    /// Nothing is held, waited for or on its way: the key can be forgotten.
    pub(crate) idle: bool,
}

impl<C> Default for Out<C> {
    fn default() -> Self {
        Self {
            replies: Vec::new(),
            notes: Vec::new(),
            ready: None,
            look_at: None,
            wants_wake_ups: false,
            idle: false,
        }
    }
}

/// The reply to a caller.
#[derive(Debug)]
pub(crate) enum Reply<C> {
    /// The caller has the lock.
    Granted(Box<Waiter<C>>, Arc<Ownership>),
    Refused(Box<Waiter<C>>, Refusal),
    /// The store has confirmed what the caller did.
    Confirmed(C),
    /// The lease had already ended.
    Lost(C, LostReason),
    /// The store did not confirm it in time. With the last error, if there was one.
    Unconfirmed(C, Option<StoreError>),
}

/// The reason why a caller does not acquire the lock.
#[derive(Debug, Clone)]
pub(crate) enum Refusal {
    /// Another owner holds it.
    Busy(Option<Holder>),
    /// A transaction has its row locked.
    RowLocked,
    /// The store has not answered yet.
    NoAnswer,
    Store(StoreError),
    Shutdown,
}

/// The store's last answer about a key.
#[derive(Debug)]
pub(crate) enum LastAnswer {
    Busy(Option<Holder>),
    RowLocked,
    Failed(StoreError),
}

/// An entry for the log or for metrics.
#[derive(Debug)]
pub(crate) enum Note {
    TakenOver(Arc<Ownership>, Holder),
    /// The tasks that watch it are to be woken.
    Lost(Arc<Ownership>, LostReason),
    /// As `Lost`.
    Revoked(Arc<Ownership>, Duration),
    Released(Arc<Ownership>),
    /// The row no longer named the lease when it was to be released.
    GoneBeforeRelease(Arc<Ownership>),
    /// A renewal or a release failed. `again`: the one before it failed too.
    Failed {
        ownership: Arc<Ownership>,
        kind: Kind,
        error: StoreError,
        again: bool,
    },
    RenewedAgain(Arc<Ownership>),
    /// How late the renewal was that has just been confirmed.
    RenewalLag(Duration),
    /// The owner entered after this time, in which the key was taken.
    Waited(Arc<Ownership>, Duration),
    /// The owner's lock went to another task of this process.
    HandedOver(Arc<Ownership>),
    /// The owner's lock went to another process.
    PassedOn(Arc<Ownership>),
    /// A row that `hold_min` keeps busy is not released: it expires.
    StaysBusy(Arc<Ownership>),
}
