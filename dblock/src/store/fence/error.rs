//! The error of a statement, as a driver reports it.

use std::error::Error;
use std::fmt;

use dblock_core::store::with_causes;

use crate::store::{StoreError, StoreErrorKind};

/// The failure of a statement, as a driver reports it.
#[derive(Debug)]
pub struct DriverError {
    answered: bool,
    code: Option<String>,
    message: String,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl DriverError {
    /// The database answered with an error: it has not carried out the statement. `message` is the
    /// database's.
    ///
    /// Add the code with [`with_code`](Self::with_code). Without it a deadlock or a serialization failure
    /// cannot be told from any other error, and counts as final.
    pub fn refused(message: impl Into<String>) -> Self {
        Self {
            answered: true,
            code: None,
            message: message.into(),
            source: None,
        }
    }

    /// There was no answer that the driver understands: the connection broke, or the session was ended. The
    /// statement may have been carried out.
    pub fn broken(message: impl Into<String>) -> Self {
        Self {
            answered: false,
            ..Self::refused(message)
        }
    }

    /// The database's own code: the SQLSTATE of PostgreSQL, the error number of MySQL, such as `1213`, the
    /// result code of SQLite, extended or not.
    #[must_use]
    pub fn with_code(mut self, code: impl Into<String>) -> Self {
        self.code = Some(code.into());
        self
    }

    /// The driver's error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Whether the database answered with an error, so that the statement was not carried out.
    pub fn is_answer(&self) -> bool {
        self.answered
    }

    /// The database's own code.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Classifies it. `meaning` knows the codes of the database, beside the message.
    pub(crate) fn classify(
        self,
        meaning: impl FnOnce(&str, &str) -> Option<(StoreErrorKind, &'static str)>,
    ) -> StoreError {
        let error = if self.answered {
            let code = self.code.as_deref().unwrap_or_default();
            let (kind, remedy) = meaning(code, &self.message).unwrap_or((StoreErrorKind::Other, ""));
            let separator = if remedy.is_empty() { "" } else { "; " };
            StoreError::new(kind, format!("{}{separator}{remedy}", self.message.trim_end()))
        } else {
            let message = format!(
                "the connection to the database broke during a statement: {}",
                with_causes(self.message.clone(), self.source())
            );
            StoreError::new(StoreErrorKind::Interrupted, message)
        };
        match self.source {
            None => error,
            Some(source) => error.with_source(source),
        }
    }
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for DriverError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn an_error_tells_its_causes_in_one_line() {
        let cause = io::Error::other("FATAL: terminating connection\nHINT: it restarts");
        let broken = DriverError::broken("db error").with_source(io::Error::other(cause));
        let said = broken.classify(|_, _| None).to_string();
        let expected = "broke during a statement: db error: FATAL: terminating connection; HINT: it restarts";
        assert!(said.ends_with(expected), "{said}");
        let refused = DriverError::refused("no\nmore").with_source(io::Error::other("no\nmore"));
        let said = refused.classify(|_, _| Some((StoreErrorKind::Conflict, "try again")));
        assert_eq!(said.to_string(), "no; more; try again");
    }
}
