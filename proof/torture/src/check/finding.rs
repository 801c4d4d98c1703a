//! The violations.

use std::fmt;

use dblock_linearizability::Violation;

use super::calls::{Call, Section};
use super::once::Fault;
use crate::history::{AccountEnd, MS, Row};
use crate::once;
use crate::process_id::ProcessId;

/// A section that is part of a finding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) process: ProcessId,
    pub(crate) call: u64,
    pub(crate) token: i64,
    pub(crate) entered: i64,
    pub(crate) left: i64,
}

impl Who {
    pub(super) fn of(call: &Call, section: &Section) -> Self {
        Self {
            process: call.process,
            call: call.number,
            token: section.token,
            entered: section.entered,
            left: call.section_end(),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, to) = (self.entered / MS, self.left / MS);
        write!(
            f,
            "process {} call {} (token {}, inside from {from} to {to} ms)",
            self.process, self.call, self.token
        )
    }
}

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// Two owners were inside a key at once, and no exception explains it.
    Overlap {
        key: String,
        first: Who,
        second: Who,
        length: i64,
    },
    /// More were inside than the largest of their limits.
    AboveLimit {
        key: String,
        who: Who,
        limit: u32,
        others: usize,
    },
    /// Two chains had the same owner.
    OwnerShared { first: Who, second: Who },
    /// Two owners had the same token.
    TokenReused { key: String, first: Who, second: Who },
    /// A later owner had a smaller token.
    TokenFell { key: String, first: Who, second: Who },
    /// A re-entry had another owner or token than the lock around it.
    ReentryChanged { key: String, outer: Who, inner: Who },
    /// A re-entry was refused while its owner was inside.
    ReentryRefused {
        key: String,
        process: ProcessId,
        call: u64,
        at: i64,
    },
    /// The resource accepted a write after one with a larger token.
    StaleWriteAccepted {
        key: String,
        token: i64,
        highest: i64,
        at: i64,
    },
    /// Another owner entered before `hold_min` was over.
    HoldMinCut {
        key: String,
        first: Who,
        second: Who,
        early: i64,
    },
    /// Another owner entered while a ticket kept the key.
    TicketCut {
        key: String,
        first: Who,
        second: Who,
        early: i64,
    },
    /// A ticket was refused that nobody had adopted.
    TicketRefused {
        key: String,
        process: ProcessId,
        call: u64,
        at: i64,
    },
    /// Two owners have adopted one ticket.
    TicketAdoptedTwice { key: String, first: Who, second: Who },
    /// A section went on after its `max_hold`.
    HeldTooLong { key: String, who: Who, late: i64 },
    /// A renewed lease was lost although nothing but slow commits was wrong.
    LostForNothing {
        key: String,
        process: ProcessId,
        call: u64,
        at: i64,
    },
    /// A caller waited for longer than the bound while others entered again and again.
    Starved {
        key: String,
        process: ProcessId,
        call: u64,
        /// How long the key changed hands meanwhile.
        passed_over: i64,
        /// How many callers entered that asked later.
        overtakers: usize,
        at: i64,
    },
    /// Callers were refused because of a token that nobody had.
    HeldByNobody {
        key: String,
        token: i64,
        length: i64,
        at: i64,
    },
    /// A call took longer than its wait allows.
    Hung {
        key: String,
        process: ProcessId,
        call: u64,
        what: &'static str,
        took: i64,
        limit: i64,
        at: i64,
    },
    /// A caller was refused because of a lease whose release was confirmed.
    BusyAfterRelease {
        key: String,
        token: i64,
        released: i64,
        asked: i64,
    },
    /// A row was held when every lease must have ended.
    HeldAtTheEnd(Row),
    /// A balance is not what the ledger says.
    MoneyLost(Vec<AccountEnd>),
    /// A transfer was reported as committed and is not in the ledger.
    TransferLost { id: i64 },
    /// A number of a counter is missing, or was written twice.
    Miscounted { key: String, number: i64, found: i64 },
    /// Of two transactions under one lock the later one had no larger token.
    CommittedTokenFell {
        key: String,
        number: i64,
        token: i64,
        before: i64,
    },
    /// A call was told that its transaction was committed, or rolled back, and the database says otherwise.
    CommitUndone {
        process: ProcessId,
        call: u64,
        committed: bool,
    },
    /// The work of a run is not what its kind and its record say.
    Once { fault: Fault, end: once::End },
    /// The operations on a key or a counter fit no order.
    NotLinearizable(Violation),
    /// A call of `run_once` ended with an error that nothing explains.
    OnceRefused { run: u64, text: String },
    /// A process ended by itself.
    Crashed { process: ProcessId, code: Option<i32> },
    /// A process did not end when it was asked to.
    Stuck { process: ProcessId },
    /// Nobody entered a key after the faults were over.
    Dead { key: String },
    /// A call got a store error that no fault explains.
    StoreFailed { key: String, at: i64, text: String },
    /// The history has no end.
    Unfinished,
}

impl Finding {
    /// Whether a call is part of the finding.
    pub(crate) fn is_about(&self, process: ProcessId, call: u64) -> bool {
        let asked = (process, call);
        let one = |who: &Who| (who.process, who.call) == asked;
        match self {
            Self::Overlap { first, second, .. }
            | Self::TokenReused { first, second, .. }
            | Self::TicketCut { first, second, .. }
            | Self::TicketAdoptedTwice { first, second, .. }
            | Self::TokenFell { first, second, .. } => one(first) || one(second),
            Self::ReentryChanged { outer, inner, .. } => one(outer) || one(inner),
            Self::HeldTooLong { who, .. } | Self::AboveLimit { who, .. } => one(who),
            Self::Hung { process, call, .. }
            | Self::TicketRefused { process, call, .. }
            | Self::LostForNothing { process, call, .. }
            | Self::ReentryRefused { process, call, .. }
            | Self::Starved { process, call, .. } => (*process, *call) == asked,
            _ => false,
        }
    }

    /// The key and the time to draw.
    pub(crate) fn moment(&self) -> Option<(&str, i64)> {
        match self {
            Self::Overlap { key, second, .. }
            | Self::TokenReused { key, second, .. }
            | Self::TokenFell { key, second, .. }
            | Self::TicketCut { key, second, .. }
            | Self::TicketAdoptedTwice { key, second, .. }
            | Self::HoldMinCut { key, second, .. } => Some((key, second.entered)),
            Self::HeldTooLong { key, who, .. } => Some((key, who.left)),
            Self::AboveLimit { key, who, .. } => Some((key, who.entered)),
            Self::ReentryChanged { key, inner, .. } => Some((key, inner.entered)),
            Self::StaleWriteAccepted { key, at, .. }
            | Self::ReentryRefused { key, at, .. }
            | Self::Hung { key, at, .. }
            | Self::LostForNothing { key, at, .. }
            | Self::TicketRefused { key, at, .. }
            | Self::Starved { key, at, .. }
            | Self::HeldByNobody { key, at, .. }
            | Self::StoreFailed { key, at, .. }
            | Self::BusyAfterRelease { key, asked: at, .. } => Some((key, *at)),
            _ => None,
        }
    }
}
