//! A take of a key by a transaction: what is asked, and what the statement answers.

use std::time::Duration;

use uuid::Uuid;

use super::{FenceSource, TransactionId, time_left, unreadable};
use crate::Key;
use crate::store::StoreError;

/// The first word of the answer when the transaction has written the row. What follows is the database's own.
pub(crate) const TAKEN: &str = "taken";
/// The transaction has locked the row, which is not what it looked like, and has not written it.
pub(crate) const LOCKED: &str = "locked";
/// Another owner holds the key.
pub(crate) const HELD: &str = "held";
/// The row's ceiling is not in the past. By how many µs it is ahead follows.
pub(crate) const AHEAD: &str = "ahead";
/// Another transaction or statement has locked the row.
pub(crate) const SKIPPED: &str = "skipped";
/// There is no row, or a read of it would lock it.
pub(crate) const ABSENT: &str = "absent";

/// What a transaction writes that takes a key.
#[derive(Debug)]
pub(crate) struct Take<'a> {
    pub(crate) source: &'a FenceSource,
    pub(crate) key: &'a Key,
    pub(crate) lease_id: Uuid,
    pub(crate) owner: Uuid,
    pub(crate) holder: &'a str,
    /// The transaction is ours: where it takes nothing, it is rolled back at once.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) own: bool,
}

/// The answer to a [`Take`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Took {
    Taken {
        fence_token: i64,
        transaction: TransactionId,
        /// That of the table which the transaction has written.
        identity: String,
    },
    /// Nothing is locked.
    Nothing(NotTaken),
    /// The transaction has the row locked, and must end: else the holder's own requests would be skipped.
    MustEnd,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// There is no row, or the transaction's snapshot has none.
    Absent,
    Held,
    /// Another transaction or statement has it locked.
    Skipped,
    /// The row's ceiling is so far ahead of the clock: a token would not be above it.
    Ahead(Duration),
}

impl Took {
    /// Reads an answer. `taken` reads what follows [`TAKEN`]; `None` when it cannot.
    pub(crate) fn read(answer: &str, taken: impl FnOnce(&str) -> Option<Self>) -> Result<Self, StoreError> {
        let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
        let nothing = match word {
            TAKEN => return taken(rest).ok_or_else(|| unreadable(answer)),
            LOCKED => return Ok(Self::MustEnd),
            ABSENT => NotTaken::Absent,
            HELD => NotTaken::Held,
            SKIPPED => NotTaken::Skipped,
            AHEAD => NotTaken::Ahead(time_left(rest)?),
            _ => return Err(unreadable(answer)),
        };
        Ok(Self::Nothing(nothing))
    }
}
