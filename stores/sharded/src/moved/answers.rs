//! One answer from those of two rows.

use std::time::Duration;

use super::unknown;
use crate::Answer;
use dblock_core::store::{Action, Outcome, Request};

/// The token to which rows with these tokens are raised: above the tokens that either keeps free, unless it
/// is its own. `None` when the tokens are used up.
pub(super) fn common_token((old, new): (i64, i64), spare: u32) -> Option<i64> {
    let (low, high) = (old.min(new), old.max(new));
    let spare = i64::from(spare);
    if low == high || high > low.checked_add(spare)? {
        high.checked_add(spare).map(|_| high)
    } else {
        // Only a token above its ceiling raises a row.
        let above = high.checked_add(spare)?.checked_add(1)?;
        above.checked_add(spare).map(|_| above)
    }
}

/// The answer to an acquire that both rows grant, and the tokens of both.
pub(super) fn granted(old: Outcome, new: Outcome) -> (Outcome, (i64, i64)) {
    match (old, new) {
        (
            Outcome::Granted {
                fence_token,
                remaining,
                taken_over,
                wanted,
                ..
            },
            Outcome::Granted {
                fence_token: new_token,
                remaining: new_remaining,
                taken_over: new_taken_over,
                wanted: new_wanted,
                ..
            },
        ) => {
            let answer = Outcome::granted(fence_token, remaining.min(new_remaining))
                .with_taken_over(taken_over.or(new_taken_over))
                .with_wanted(wanted || new_wanted);
            (answer, (fence_token, new_token))
        }
        (old, _) => (old, (0, 0)),
    }
}

/// The same grant with the token of both rows, and with more time if they were given that, too.
pub(super) fn with_token(mut answer: Outcome, token: i64, left: Duration) -> Outcome {
    if let Outcome::Granted {
        fence_token,
        remaining,
        ..
    } = &mut answer
    {
        *fence_token = token;
        *remaining = left.max(*remaining);
    }
    answer
}

/// The answers to extends and releases, from those of both rows.
pub(super) fn of_both(requests: &[Request], old: Vec<Answer>, new: Vec<Answer>) -> Vec<Answer> {
    let answers = requests.iter().zip(old.into_iter().zip(new));
    let joined = answers.map(|(request, (old, new))| both(&request.action, old, new));
    joined.collect()
}

fn both(action: &Action, old: Answer, new: Answer) -> Answer {
    use Outcome::{Extended, Lost, Released, Skipped, Withdrawn};
    let extends = matches!(action, Action::Extend(_));
    match (old, new) {
        // A lease of which one row is lost is lost.
        (Ok(Lost), _) | (_, Ok(Lost)) if extends => Ok(Lost),
        (Err(error), Ok(_)) | (Ok(_), Err(error)) if error.is_retryable() => {
            // The other row has carried it out.
            Err(unknown("only one of the two shards of a key that moves has answered").with_source(error))
        }
        (Err(error), Err(other)) if other.is_outcome_unknown() || !error.is_retryable() => {
            Err(if error.is_retryable() { other } else { error })
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
        (Ok(Skipped), Ok(Skipped)) => Ok(Skipped),
        (Ok(Skipped), _) | (_, Ok(Skipped)) if extends => Ok(Skipped),
        // The other row is released, or never knew the lease: the next answer about it says nothing.
        (Ok(Skipped), _) | (_, Ok(Skipped)) => Err(unknown(
            "the row of a key that moves is locked on one of its two shards",
        )),
        (
            Ok(Extended {
                remaining,
                revoked,
                wanted,
                ..
            }),
            Ok(Extended {
                remaining: new_remaining,
                revoked: new_revoked,
                wanted: new_wanted,
                ..
            }),
        ) => Ok(Outcome::extended(remaining.min(new_remaining))
            .with_revoked(revoked || new_revoked)
            .with_wanted(wanted || new_wanted)),
        // It was next on one row, and held the other or did not get to it.
        (Ok(Withdrawn), _) | (_, Ok(Withdrawn)) => Ok(Withdrawn),
        (Ok(Released(old)), Ok(Released(new))) => Ok(Released(old.max(new))),
        // An acquire of unknown outcome may still arrive at the row that does not know the lease.
        _ => Ok(Lost),
    }
}

#[cfg(test)]
mod tests;
