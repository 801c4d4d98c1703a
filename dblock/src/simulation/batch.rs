//! Requests on their way to the store.

use crate::store::record::{Record, RecordWrite};
use crate::store::{Outcome, Request, StoreError};

/// Requests that were sent together.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) process: usize,
    pub(super) incarnation: u32,
    pub(super) lane: usize,
    pub(super) requests: Vec<(usize, Request)>,
    pub(super) answers: Vec<Option<Result<Outcome, StoreError>>>,
    /// The kind whose statement is executed next.
    pub(super) next: usize,
    pub(super) fate: Fate,
    pub(super) times_out_at: u64,
    pub(super) breaks: bool,
    /// Since when the sender knows the outcome, or knows that it is unknown.
    pub(super) answered_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Goes,
    Unreachable,
    /// The connection breaks before it is carried out.
    LostBefore,
    /// It is carried out, and the answer is lost.
    LostAfter,
    /// The connection breaks, and then it is carried out.
    Late,
    Conflict,
    Refused,
    /// The connection breaks in the middle: it is rolled back.
    RolledBack,
}

/// A request for a record.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) caller: usize,
    pub(super) process: usize,
    pub(super) incarnation: u32,
    /// `None` reads.
    pub(super) write: Option<RecordWrite>,
    pub(super) fate: Fate,
    pub(super) answer: Option<Answer>,
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Found(Option<Record>),
    Written(bool),
}
