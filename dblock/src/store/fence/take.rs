//! A take of a key by a transaction: what is asked, and what the statement answers.

use dblock_core::store::rules::{self, Took};
use uuid::Uuid;

use super::{FenceConnection, FenceSource, TransactionId, time_left, unreadable};
use crate::Key;
use crate::store::{Store, StoreError};

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

/// A key that a transaction has taken.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) fence_token: i64,
    pub(crate) transaction: TransactionId,
    /// That of the table which the transaction has written.
    pub(crate) identity: String,
}

/// Takes a key of `store` in a transaction, for the project's own tests. With `own` the transaction is rolled back at
/// once where that takes nothing.
///
/// # Errors
/// The database's answer.
///
/// # Panics
/// If the store is no database.
pub async fn take_on(
    store: &dyn Store,
    transaction: &mut dyn FenceConnection,
    key: &Key,
    ask: &rules::Take,
    own: bool,
) -> Result<Took, StoreError> {
    let source = FenceSource::of(store, 0).expect("a database");
    let take = Take {
        source: &source,
        key,
        lease_id: ask.lease_id,
        owner: ask.owner,
        holder: &ask.holder,
        own,
    };
    let took = source.dialect_in(transaction)?.take(transaction, &take).await?;
    Ok(took.map(|taken| taken.fence_token))
}

/// Reads the answer to a [`Take`]. `taken` reads what follows [`TAKEN`]; `None` when it cannot.
pub(crate) fn took(
    answer: &str,
    taken: impl FnOnce(&str) -> Option<Taken>,
) -> Result<Took<Taken>, StoreError> {
    let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
    Ok(match word {
        TAKEN => Took::Taken(taken(rest).ok_or_else(|| unreadable(answer))?),
        LOCKED => Took::Locked,
        ABSENT => Took::Absent,
        HELD => Took::Held,
        SKIPPED => Took::Skipped,
        AHEAD => Took::Ahead(time_left(rest)?),
        _ => return Err(unreadable(answer)),
    })
}
