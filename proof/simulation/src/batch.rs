//! Requests on their way to the store.

use dblock_core::store::{Outcome, Request, StoreError};
use dblock_core::store::{Record, RecordWrite};

/// Requests that were sent together.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) process: usize,
    pub(crate) incarnation: u32,
    pub(crate) lane: usize,
    pub(crate) requests: Vec<(usize, Request)>,
    pub(crate) answers: Vec<Option<Result<Outcome, StoreError>>>,
    /// The kind whose statement is executed next.
    pub(crate) next: usize,
    pub(crate) fate: Fate,
    pub(crate) times_out_at: u64,
    pub(crate) breaks: bool,
    /// Since when the sender knows the outcome, or knows that it is unknown.
    pub(crate) answered_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
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
pub(crate) struct Ask {
    pub(crate) caller: usize,
    pub(crate) process: usize,
    pub(crate) incarnation: u32,
    /// `None` reads.
    pub(crate) write: Option<RecordWrite>,
    pub(crate) fate: Fate,
    pub(crate) answer: Option<Answer>,
}

#[derive(Debug, Clone)]
pub(crate) enum Answer {
    Found(Option<Record>),
    Written(bool),
}
