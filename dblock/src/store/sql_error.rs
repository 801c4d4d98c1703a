//! Maps a driver's error to a [`StoreError`]: the part that all databases share.

use sqlx::error::DatabaseError;

use super::{StoreError, StoreErrorKind};

/// The drivers are built without TLS.
pub(crate) const NO_TLS: &str =
    "demands TLS, which is not compiled in; turn on the feature `tls-rustls` or `tls-native-tls` of dblock";

/// Classifies an error of a statement. `dialect` knows the database's own codes; `None` from it means
/// an ordinary refusal of the statement.
///
/// When the database answers with an error, the outcome is known: the statement was not carried out. After
/// any other error, once something was sent, the outcome is unknown.
pub(crate) fn of_statement(
    error: sqlx::Error,
    dialect: impl Fn(&dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)>,
) -> StoreError {
    match error {
        sqlx::Error::Database(answer) => {
            let (kind, remedy) = dialect(&*answer).unwrap_or((StoreErrorKind::Other, ""));
            let mut message = answer.message().to_owned();
            if !remedy.is_empty() {
                message = format!("{message}; {remedy}");
            }
            StoreError::new(kind, message).with_source(sqlx::Error::Database(answer))
        }
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
            StoreError::new(
                StoreErrorKind::Interrupted,
                format!("the connection to the database broke during a statement: {error}"),
            )
            .with_source(error)
        }
        // A column that cannot be read, for example. The statement may have been carried out.
        other => StoreError::new(
            StoreErrorKind::Interrupted,
            format!("unexpected answer of the database: {other}"),
        )
        .with_source(other),
    }
}

/// Classifies an error of opening a connection. Nothing was sent, so the outcome is known. `database` names it: "the
/// database", with its address where that is known.
pub(crate) fn of_connect(
    error: sqlx::Error,
    database: &str,
    dialect: impl Fn(&dyn DatabaseError) -> Option<(StoreErrorKind, &'static str)>,
) -> StoreError {
    match error {
        sqlx::Error::Database(_) => of_statement(error, dialect),
        sqlx::Error::Configuration(_) => StoreError::new(
            StoreErrorKind::Refused,
            format!("the database's connection options are not usable: {error}"),
        )
        .with_source(error),
        sqlx::Error::Tls(_) if cfg!(not(any(feature = "tls-rustls", feature = "tls-native-tls"))) => {
            StoreError::new(StoreErrorKind::Refused, format!("the connection {NO_TLS}")).with_source(error)
        }
        other => StoreError::new(
            StoreErrorKind::Unreachable,
            format!(
                "{database} cannot be reached: {other}; is the server running, and is the address right?"
            ),
        )
        .with_source(other),
    }
}

/// The error for a write under a lease that would have to wait for a row.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(crate) fn row_locked() -> StoreError {
    StoreError::new(
        StoreErrorKind::Conflict,
        "a transaction that is still open keeps the row of the lock or of the record locked, such as one that called \
         `verify_in`",
    )
}

/// The answer to an action that this version does not know.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) fn unsupported_action() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        "this version of the store does not know the action; upgrade the dblock crate",
    )
}
