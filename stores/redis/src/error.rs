//! The meaning of the `redis` crate's errors.

use std::fmt::Display;

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// The error with the address of the server that it comes from.
pub(crate) fn at(address: impl Display, error: StoreError) -> StoreError {
    error.with_prefix(&format!("{address}: "))
}

/// An error of opening a connection: nothing was sent, so nothing can have been carried out.
pub(crate) fn of_connect(error: RedisError) -> StoreError {
    if error.kind() == ErrorKind::AuthenticationFailed {
        return refused(error);
    }
    let text = error.to_string();
    if is_unanswered(&error) || text.contains("max number of clients") {
        let message = format!(
            "the Redis server cannot be reached ({error}); is it running, with room for another client, and is the address \
             right?"
        );
        return StoreError::new(StoreErrorKind::Unreachable, message).with_source(error);
    }
    // The crate's words. It leaves out the code of the answer to SELECT.
    if text.contains("refused to switch database") {
        if text.contains("permission") {
            return refused(error);
        }
        let message = format!("the Redis server has no database of the number in the URL ({error})");
        return StoreError::new(StoreErrorKind::Unsupported, message).with_source(error);
    }
    of_answer(error)
}

/// An error of a command or a script.
pub(crate) fn of_call(error: RedisError) -> StoreError {
    if is_unanswered(&error) {
        let message = format!("the connection to the Redis server broke: {error}");
        return StoreError::new(StoreErrorKind::Interrupted, message).with_source(error);
    }
    of_answer(error)
}

fn is_unanswered(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
}

/// What Redis 7.0 says, without a code, where a user lacks the right to a command of a script.
const SCRIPT_DENIED: &str = "The user executing the script can't run this command";

/// An answer of the server's. A script is refused before it writes, or not at all.
fn of_answer(error: RedisError) -> StoreError {
    let code = error.code().unwrap_or_default().to_owned();
    let text = error.to_string();
    // An error that a script has met is told by its code since Redis 7, and in its text before.
    let says = |word: &str| code == word || text.contains(word);
    let (kind, remedy) = if says("READONLY") {
        (
            StoreErrorKind::Unreachable,
            "the server is a replica: point dblock at the primary",
        )
    } else if says("OOM") {
        (
            StoreErrorKind::Conflict,
            "the server's memory is full: raise `maxmemory`, or give the locks a server of their own",
        )
    } else if says("MISCONF") || says("NOREPLICAS") {
        (
            StoreErrorKind::Unreachable,
            "the server takes no writes at present; its log says why",
        )
    } else if ["NOPERM", "NOAUTH", "WRONGPASS", SCRIPT_DENIED]
        .into_iter()
        .any(says)
    {
        return refused(error);
    } else if says("CLUSTERDOWN") {
        (
            StoreErrorKind::Unreachable,
            "the Redis Cluster has no primary for this key at present",
        )
    } else if says("TRYAGAIN") || code == "ASK" {
        (
            StoreErrorKind::Conflict,
            "the slot of this key is being moved to another server of the Redis Cluster",
        )
    } else if says("MOVED") || says("CROSSSLOT") {
        (
            StoreErrorKind::Unsupported,
            "the server is one of a Redis Cluster: give the cluster's URL, as redis+cluster://…",
        )
    } else if says("cluster support disabled") {
        (
            StoreErrorKind::Unsupported,
            "the server is not one of a Redis Cluster: give its URL as redis://…",
        )
    } else if says("unknown command") {
        (
            StoreErrorKind::Unsupported,
            "the server lacks a command: see that it is what the scheme of the URL says, and that nobody has renamed the command",
        )
    } else {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::BusyLoading | ServerErrorKind::MasterDown) => {
                (StoreErrorKind::Unreachable, "the server is starting")
            }
            // Somebody empties the server's memory of scripts again and again.
            ErrorKind::Server(ServerErrorKind::NoScript) => (
                StoreErrorKind::Conflict,
                "the script was flushed before it could be carried out",
            ),
            _ if code == "BUSY" => (StoreErrorKind::Conflict, "another script runs for too long"),
            _ => (StoreErrorKind::Other, "the Redis server refuses the request"),
        }
    };
    StoreError::new(kind, format!("{remedy} ({text})")).with_source(error)
}

/// The answer of a cluster's server that did not carry a request out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The server at this address has the slot.
    Moved(String),
    /// This address is getting the slot, and has these keys.
    Ask(String),
    /// The keys are on both sides of a move: ask for one at a time.
    Split,
}

/// The redirect in an error, if it is one. Then nothing was carried out.
pub(crate) fn redirect(error: &StoreError) -> Option<Redirect> {
    let error = std::error::Error::source(error)?.downcast_ref::<RedisError>()?;
    let address = || Some(error.redirect_node()?.0.to_owned());
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => address().map(Redirect::Moved),
        ErrorKind::Server(ServerErrorKind::Ask) => address().map(Redirect::Ask),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::Split),
        _ => None,
    }
}

fn refused(error: RedisError) -> StoreError {
    let message = format!(
        "the Redis server refuses this user: check the user and password in the URL, and see that the user may do what \
         the README of dblock-redis lists ({error})"
    );
    StoreError::new(StoreErrorKind::Refused, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(text: &str) -> StoreError {
        let (code, detail) = text.split_once(' ').expect("a code and a text");
        of_call(redis::make_extension_error(
            code.to_owned(),
            Some(detail.to_owned()),
        ))
    }

    #[test]
    fn each_answer_has_its_consequence() {
        use StoreErrorKind::{Conflict, Other, Refused, Unreachable, Unsupported};
        let known = [
            (
                "READONLY You can't write against a read only replica.",
                Unreachable,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                Conflict,
            ),
            ("MISCONF Redis is configured to save RDB snapshots", Unreachable),
            ("NOREPLICAS Not enough good replicas to write.", Unreachable),
            ("NOPERM this user has no permissions", Refused),
            ("BUSY Redis is busy running a script.", Conflict),
            ("MOVED 1 127.0.0.1:2", Unsupported),
            ("WHATEVER it is", Other),
            // Before Redis 7.
            (
                "ERR Error running script: @user_script: -OOM command not allowed",
                Conflict,
            ),
        ];
        for (text, kind) in known {
            let error = answered(text);
            assert_eq!(error.kind(), kind, "{text}: {error}");
            assert!(!error.is_outcome_unknown(), "{text}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_open() {
        let broken = || RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(of_call(broken()).is_outcome_unknown());
        assert_eq!(of_connect(broken()).kind(), StoreErrorKind::Unreachable);
    }
}
