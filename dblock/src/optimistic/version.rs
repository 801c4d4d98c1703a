//! A write that expects a version, and the error when the row has another one.

use std::fmt::Display;

use super::Conflict;

/// A write found no row with the version that was read: somebody else has changed or deleted it.
///
/// ```
/// use dblock::optimistic::StaleVersion;
///
/// let error = StaleVersion::new("stock", 42, 7);
/// assert_eq!(error.to_string(), "stock 42 no longer has version 7: somebody else has changed or deleted it");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} {id} no longer has version {version}: somebody else has changed or deleted it{}",
    counted(*tries)
)]
#[non_exhaustive]
pub struct StaleVersion {
    /// The kind of the row, such as the table's name.
    pub what: String,
    /// The id of the row.
    pub id: String,
    /// The version that the write expected.
    pub version: String,
    /// How often the body ran before it was given up, the first run included. `None` until then.
    pub tries: Option<u32>,
}

impl StaleVersion {
    /// The error, for a write whose result does not implement [`ExpectVersion`].
    pub fn new(what: impl Into<String>, id: impl Display, version: impl Display) -> Self {
        Self {
            what: what.into(),
            id: id.to_string(),
            version: version.to_string(),
            tries: None,
        }
    }
}

impl Conflict for StaleVersion {
    fn is_conflict(&self) -> bool {
        true
    }

    fn exhausted(self, tries: u32) -> Self {
        let tries = Some(tries);
        Self { tries, ..self }
    }
}

fn counted(tries: Option<u32>) -> String {
    match tries {
        None => String::new(),
        Some(1) => " (given up after 1 try)".into(),
        Some(tries) => format!(" (given up after {tries} tries)"),
    }
}

/// The result of a write: how many rows it has changed. Implemented for the query results of sqlx, and for
/// `u64`, as other drivers give the number of rows.
pub trait ExpectVersion {
    /// Fails if the write has changed no row. `what` and `id` name the row, and `version` is the one that the
    /// write expected; they are for the message.
    ///
    /// ```
    /// use dblock::optimistic::ExpectVersion;
    ///
    /// let changed: u64 = 0; // `UPDATE … WHERE id = 42 AND version = 7`
    /// let stale = changed.expect_version("stock", 42, 7).unwrap_err();
    /// assert_eq!((stale.id.as_str(), stale.version.as_str()), ("42", "7"));
    /// assert!(1_u64.expect_version("stock", 42, 7).is_ok());
    /// ```
    ///
    /// # Errors
    /// [`StaleVersion`] if no row was changed.
    fn expect_version(
        &self,
        what: impl Into<String>,
        id: impl Display,
        version: impl Display,
    ) -> Result<(), StaleVersion>;
}

impl ExpectVersion for u64 {
    fn expect_version(
        &self,
        what: impl Into<String>,
        id: impl Display,
        version: impl Display,
    ) -> Result<(), StaleVersion> {
        match self {
            0 => Err(StaleVersion::new(what, id, version)),
            _ => Ok(()),
        }
    }
}

macro_rules! expect_version {
    ($feature:literal, $result:ty) => {
        #[cfg(feature = $feature)]
        impl ExpectVersion for $result {
            fn expect_version(
                &self,
                what: impl Into<String>,
                id: impl Display,
                version: impl Display,
            ) -> Result<(), StaleVersion> {
                self.rows_affected().expect_version(what, id, version)
            }
        }
    };
}

expect_version!("postgres", sqlx::postgres::PgQueryResult);
expect_version!("mysql", sqlx::mysql::MySqlQueryResult);
expect_version!("sqlite", sqlx::sqlite::SqliteQueryResult);
