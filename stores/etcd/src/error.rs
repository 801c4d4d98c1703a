//! The meaning of etcd's errors.

use std::error::Error as _;

use dblock_core::store::{StoreError, StoreErrorKind, with_causes};
use etcd_client::Error;
use tonic::Code;

/// An error of a call that takes no lock: whether it was carried out does not matter, and it is worth asking
/// again.
pub(crate) fn of_harmless(error: Error) -> StoreError {
    let error = of_call(error);
    if error.kind() != StoreErrorKind::Interrupted {
        return error;
    }
    StoreError::new(StoreErrorKind::Unreachable, error.to_string()).with_source(error)
}

/// An error of a call that may have changed a row.
pub(crate) fn of_call(error: Error) -> StoreError {
    let (code, text) = match &error {
        Error::GRpcStatus(status) => (status.code(), status.message().to_owned()),
        Error::InvalidArgs(text) => (Code::InvalidArgument, text.clone()),
        Error::InvalidUri(_) | Error::EndpointError(_) => {
            let message = "the address of an etcd member cannot be used: write it as http://host:2379";
            return StoreError::new(StoreErrorKind::Unsupported, message).with_source(error);
        }
        Error::TransportError(error) => (Code::Unknown, error.to_string()),
        other => (Code::Unknown, other.to_string()),
    };
    let (kind, remedy) = match code {
        Code::PermissionDenied => refused(),
        Code::InvalidArgument if text.contains("authentication failed") => refused(),
        Code::InvalidArgument if text.contains("user name is empty") => (
            StoreErrorKind::Refused,
            "etcd's authentication is on, and no user is named: name one by `EtcdStore::user`, or by a client certificate",
        ),
        Code::FailedPrecondition if text.contains("authentication is not enabled") => (
            StoreErrorKind::Refused,
            "etcd's authentication is off: run `etcdctl auth enable`, or leave out `EtcdStore::user`",
        ),
        Code::ResourceExhausted if text.contains("space exceeded") => (
            StoreErrorKind::Conflict,
            "etcd is full and takes no writes: compact and defragment it, disarm its alarm, and switch on --auto-compaction-retention",
        ),
        Code::ResourceExhausted => (StoreErrorKind::Conflict, "etcd has too much to do"),
        // Nothing was sent.
        Code::Unavailable if text.contains("tcp connect error") || text.contains("no leader") => (
            StoreErrorKind::Unreachable,
            "this member of etcd cannot be reached, or knows no leader",
        ),
        // A token of etcd's kind `jwt` ends with each change of a user or a role. It is refused before anything is
        // carried out, and a new connection logs in anew.
        Code::Unauthenticated => login_is_over(),
        Code::InvalidArgument if text.contains("revision of auth store is old") => login_is_over(),
        Code::InvalidArgument
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::FailedPrecondition
        | Code::NotFound => (StoreErrorKind::Other, "etcd refuses the request"),
        _ => (
            StoreErrorKind::Interrupted,
            "the connection to etcd broke, or it did not answer in time",
        ),
    };
    let cause = match &error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => error.source(),
        _ => None,
    };
    let message = format!("{remedy} ({})", with_causes(text, cause));
    StoreError::new(kind, message).with_source(error)
}

/// The error with the address of the member that it comes from.
pub(crate) fn at(address: &str, error: StoreError) -> StoreError {
    error.with_prefix(&format!("{address}: "))
}

/// It is not known what was carried out.
pub(crate) fn unknown(message: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Interrupted, message)
}

fn refused() -> (StoreErrorKind, &'static str) {
    (
        StoreErrorKind::Refused,
        "etcd refuses this user: check the user and password, and see that its role may do what the README of dblock-etcd lists",
    )
}

fn login_is_over() -> (StoreErrorKind, &'static str) {
    (
        StoreErrorKind::Unreachable,
        "this connection's login to etcd is over, by its age or by a change of the users or roles",
    )
}

/// The lease is not there: it was revoked or has expired.
pub(crate) fn is_no_lease(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) => status.message().contains("requested lease not found"),
        Error::LeaseKeepAliveError(_) => true,
        _ => false,
    }
}

/// The lease is there already.
pub(crate) fn is_same_lease(error: &Error) -> bool {
    matches!(error, Error::GRpcStatus(status) if status.message().contains("lease already exists"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_that_has_become_old_is_worth_a_new_connection() {
        let old = "etcdserver: revision of auth store is old";
        let status = tonic::Status::invalid_argument(old);
        assert_eq!(
            of_call(Error::GRpcStatus(status)).kind(),
            StoreErrorKind::Unreachable
        );
        let status = tonic::Status::invalid_argument("etcdserver: key is not provided");
        assert_eq!(of_call(Error::GRpcStatus(status)).kind(), StoreErrorKind::Other);
    }
}
