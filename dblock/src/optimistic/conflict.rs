//! The errors that are conflicts: the work did not happen, and may succeed when it starts over.

use std::fmt::Display;

use crate::LockError;
use crate::store::StoreErrorKind;

/// An error that says whether it is a conflict: somebody else was faster, nothing of the work stands, and the
/// same call may succeed when it starts over.
///
/// Implemented for these errors:
///
/// | error | conflicts |
/// |---|---|
/// | [`StaleVersion`](crate::optimistic::StaleVersion) | always |
/// | `sqlx::Error`, PostgreSQL | `40001` serialization failure, `40P01` deadlock |
/// | `sqlx::Error`, MySQL and MariaDB | 1213 deadlock, 1205 lock wait timeout, 1020 changed since the snapshot |
/// | `sqlx::Error`, SQLite | `SQLITE_BUSY` with its snapshot kind, `SQLITE_LOCKED` |
/// | [`LockError`] | a store error of the kind [`Conflict`](StoreErrorKind::Conflict), as `verify_in` and `release_in` give it when the database has ended the transaction |
///
/// An error after which the work may stand is no conflict: a connection that breaks during the commit, a
/// commit that MySQL's group replication refuses (3100, 3101: the other members may carry it out), a lease that
/// was [lost](LockError::Lost) while the body ran, or a release that the store did not
/// [confirm](LockError::Unconfirmed). A lock that is busy is no conflict either: `wait` is for that.
///
/// Implement it for your error type by asking the errors inside:
///
/// ```
/// use dblock::LockError;
/// use dblock::optimistic::{Conflict, StaleVersion};
///
/// #[derive(Debug, thiserror::Error)]
/// enum OrderError {
///     #[error(transparent)]
///     Stale(#[from] StaleVersion),
///     #[error(transparent)]
///     Lock(#[from] LockError),
///     #[error("the order is closed")]
///     Closed,
/// }
///
/// impl Conflict for OrderError {
///     fn is_conflict(&self) -> bool {
///         match self {
///             Self::Stale(error) => error.is_conflict(),
///             Self::Lock(error) => error.is_conflict(),
///             Self::Closed => false,
///         }
///     }
/// }
///
/// assert!(OrderError::from(StaleVersion::new("order", 42, 7)).is_conflict());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which of its errors are conflicts",
    label = "expected an error that implements `dblock::optimistic::Conflict`",
    note = "implement it by asking the errors inside: `fn is_conflict(&self) -> bool {{ matches!(self, Self::Database(error) if \
            error.is_conflict()) }}`"
)]
pub trait Conflict: Display {
    /// Whether nothing of the work stands, and the same call may succeed when it starts over.
    fn is_conflict(&self) -> bool;

    /// Makes the error that the call returns when the last run of the body has ended with this conflict.
    /// `tries` is how often the body ran. The default returns the error as it is; the number is in the log as
    /// well.
    #[must_use]
    fn exhausted(self, tries: u32) -> Self
    where
        Self: Sized,
    {
        let _ = tries;
        self
    }
}

impl Conflict for LockError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Store { source, .. } if source.kind() == StoreErrorKind::Conflict)
    }
}

#[cfg(feature = "sql")]
impl Conflict for sqlx::Error {
    fn is_conflict(&self) -> bool {
        // Only the database's own answer says that nothing stands.
        self.as_database_error()
            .is_some_and(crate::store::conflict::is_conflict)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Key;
    use crate::LostReason;
    use crate::store::StoreError;

    #[test]
    fn only_what_is_undone_for_sure_is_a_conflict() {
        let store = |kind| LockError::store(StoreError::new(kind, "why"));
        assert!(store(StoreErrorKind::Conflict).is_conflict());
        for kind in [
            StoreErrorKind::Interrupted,
            StoreErrorKind::Unreachable,
            StoreErrorKind::Schema,
            StoreErrorKind::Refused,
            StoreErrorKind::Unsupported,
            StoreErrorKind::Other,
        ] {
            assert!(!store(kind).is_conflict(), "{kind:?}");
        }
        let key = Key::new(None, "a").unwrap();
        let busy = LockError::busy(key.clone(), None, Duration::ZERO);
        let undone = StoreError::new(StoreErrorKind::Conflict, "why");
        let stands = LockError::unconfirmed(key.clone(), Duration::ZERO, undone);
        assert!(!stands.is_conflict());
        let lost = LockError::lost(key, LostReason::Gone, 1, Duration::ZERO);
        assert!(!busy.is_conflict() && !lost.is_conflict());
    }

    #[cfg(feature = "sql")]
    #[test]
    fn a_connection_that_breaks_is_no_conflict() {
        let broken = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(!sqlx::Error::Io(broken).is_conflict());
        assert!(!sqlx::Error::PoolTimedOut.is_conflict());
        assert!(!sqlx::Error::RowNotFound.is_conflict());
    }
}
