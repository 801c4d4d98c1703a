//! What a machine tells its callers and the log. The engine delivers it after it has unlocked the key's
//! mutex.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::call::Call;
use super::env::Time;
use super::ownership::Ownership;
use crate::LostReason;
use crate::store::{Holder, Kind, StoreError};

/// A caller in the wait queue.
#[derive(Debug)]
pub struct Waiter<A> {
    pub call: Arc<Call>,
    pub since: Time,
    /// Where the answer goes.
    pub to: A,
}

/// A caller's turn to take the key in its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The number of the caller.
    pub number: u64,
    /// A fresh id, for the lease that the transaction writes.
    pub lease_id: Uuid,
}

/// The reply to a caller. `A` is where the answer to an acquire goes, and `C` where a confirmation goes: channels,
/// or numbers in a simulation.
#[derive(Debug)]
pub enum Reply<A, C> {
    /// The caller has the lock.
    Granted(Waiter<A>, Arc<Ownership>),
    /// The caller may try to take the key in its transaction.
    Turn(Waiter<A>, Turn),
    Refused(Waiter<A>, Refusal),
    /// Whether the store has confirmed what the caller did.
    Confirmed(C, Result<(), Unconfirmed>),
}

/// The reason why a caller's change is not confirmed. After `NoAnswer` the row may record it all the same.
#[derive(Debug, Clone)]
pub enum Unconfirmed {
    /// The lease had already ended.
    Lost(LostReason),
    /// The store did not answer in time. The engine goes on trying. With the last error, if there was one.
    NoAnswer(Option<StoreError>),
}

/// The reason why a caller does not acquire the lock.
#[derive(Debug, Clone)]
pub enum Refusal {
    /// Another owner holds it.
    Busy(Option<Holder>),
    /// A transaction has its row locked.
    RowLocked,
    /// The store has not answered yet.
    NoAnswer,
    /// The row is not held by the ticket that the caller adopts.
    TicketOver,
    Store(StoreError),
    Shutdown,
}

/// An entry for the log or for metrics.
#[derive(Debug)]
pub enum Note {
    TakenOver(Arc<Ownership>, Holder),
    /// The engine wakes the tasks that watch this lease.
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
    /// The owner waited this long because the key was held.
    Waited(Arc<Ownership>, Duration),
    /// The owner's lock went to another task of this process.
    HandedOver(Arc<Ownership>),
    /// The owner's lock went to another process.
    PassedOn(Arc<Ownership>),
    /// A row that `hold_min` keeps busy is not released: it expires.
    StaysBusy(Arc<Ownership>),
}
