//! The meaning of the client's errors.

use dblock_core::store::{StoreError, StoreErrorKind};
use zookeeper_client::Error;

/// An error of opening a session, or of a look: nothing can have been changed.
pub(crate) fn of_look(error: Error) -> StoreError {
    of_answer(error, StoreErrorKind::Unreachable)
}

/// An error of a write that was sent.
pub(crate) fn of_write(error: Error) -> StoreError {
    of_answer(error, StoreErrorKind::Interrupted)
}

/// An error of a look that belongs to a write. The row is written, whatever it says: the outcome is open.
pub(crate) fn of_written(error: Error) -> StoreError {
    let message = format!("what was written could not be read ({error})");
    StoreError::new(StoreErrorKind::Interrupted, message).with_source(error)
}

/// Whether the session may be of no use any more after this error.
pub(crate) fn is_of_session(error: &StoreError) -> bool {
    matches!(
        error.kind(),
        StoreErrorKind::Interrupted | StoreErrorKind::Unreachable
    )
}

/// An error for what was not sent into a session, because of this error.
pub(crate) fn of_unsent(lost: &StoreError) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, lost.to_string())
}

/// `unanswered` follows from an error that no server has answered with.
fn of_answer(error: Error, unanswered: StoreErrorKind) -> StoreError {
    let refused = (
        StoreErrorKind::Refused,
        "ZooKeeper refuses this user: check the user and password in the URL, and the access lists of the nodes",
    );
    let (kind, remedy) = match &error {
        Error::NoAuth | Error::InvalidAcl => refused,
        // Of the session: what was sent before may have been carried out.
        Error::AuthFailed if unanswered == StoreErrorKind::Unreachable => refused,
        Error::Unimplemented => (
            StoreErrorKind::Unsupported,
            "the server is older than ZooKeeper 3.6, which is needed: upgrade it",
        ),
        Error::QuotaExceeded => (
            StoreErrorKind::Conflict,
            "the quota of the nodes is used up: raise it with ZooKeeper's `setquota`",
        ),
        Error::Throttled => (
            StoreErrorKind::Conflict,
            "the server has too many requests at once",
        ),
        Error::NotReadOnly => (
            StoreErrorKind::Unreachable,
            "the server has no leader and takes no writes",
        ),
        // Our nodes are made with each session. Somebody has deleted them since.
        Error::NoNode => (
            StoreErrorKind::Unreachable,
            "the nodes of dblock were deleted; they are made again with the next request",
        ),
        Error::NoHosts | Error::Timeout => (
            StoreErrorKind::Unreachable,
            "no ZooKeeper server can be reached; are they running, and are the addresses right?",
        ),
        Error::BadArguments(_) | Error::MarshallingError | Error::NoChildrenForEphemerals => {
            (StoreErrorKind::Other, "ZooKeeper refuses the request")
        }
        _ => (unanswered, "the connection to ZooKeeper broke"),
    };
    StoreError::new(kind, format!("{remedy} ({error})")).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_write_without_an_answer_leaves_the_outcome_open() {
        use StoreErrorKind::{Conflict, Interrupted, Refused, Unreachable, Unsupported};
        for (error, looked, wrote) in [
            (Error::ConnectionLoss, Unreachable, Interrupted),
            (Error::SessionExpired, Unreachable, Interrupted),
            (Error::SessionMoved, Unreachable, Interrupted),
            (Error::ClientClosed, Unreachable, Interrupted),
            (Error::UnexpectedError("x".to_owned()), Unreachable, Interrupted),
            (Error::NoAuth, Refused, Refused),
            (Error::AuthFailed, Refused, Interrupted),
            (Error::Unimplemented, Unsupported, Unsupported),
            (Error::QuotaExceeded, Conflict, Conflict),
            (Error::Throttled, Conflict, Conflict),
            (Error::NoHosts, Unreachable, Unreachable),
        ] {
            assert_eq!(of_look(error.clone()).kind(), looked, "{error}");
            assert_eq!(of_write(error.clone()).kind(), wrote, "{error}");
            assert_eq!(of_written(error.clone()).kind(), Interrupted, "{error}");
        }
    }
}
