//! A store's errors.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// A store's failure. [`kind`](Self::kind) says what follows from it. The message says what happened, and
/// names the remedy where there is one.
#[derive(Debug, Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

/// The consequence of a [`StoreError`]: whether something was carried out, and whether to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// No connection that can write was available, and nothing was carried out. Worth trying again: after a
    /// fail-over the next connection may find the primary.
    Unreachable,
    /// The connection broke, or the time limit passed, after something was sent: the request may have been
    /// carried out, or may still be carried out. The store has given up the connection. Worth trying again.
    Interrupted,
    /// The database undid the statement because of others (a deadlock, a serialization failure, or a lock
    /// that was not free in time). Worth trying again.
    Conflict,
    /// The table is missing, older or newer than this version of dblock. The message has the remedy.
    Schema,
    /// The database refuses: wrong password, no permission.
    Refused,
    /// The store or the build of this program cannot do what was asked.
    Unsupported,
    /// Anything else. Not worth trying again.
    Other,
}

impl StoreError {
    /// A failure with its message, which names the remedy where there is one. It must not contain a
    /// password: a database URL is never part of it. Lines of the message are joined by `; `, because a log entry is
    /// one line.
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: one_line(message.into()),
            source: None,
        }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// The same failure, with `prefix` before its message.
    #[doc(hidden)]
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.message.insert_str(0, prefix);
        self
    }

    /// Its consequence.
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// The same request may succeed later without a change to the program or the database.
    pub fn is_retryable(&self) -> bool {
        use StoreErrorKind::{Conflict, Interrupted, Unreachable};
        matches!(self.kind, Unreachable | Interrupted | Conflict)
    }

    /// The request may have been carried out, or may still be carried out.
    pub fn is_outcome_unknown(&self) -> bool {
        self.kind == StoreErrorKind::Interrupted
    }
}

/// A log entry is one line.
pub(crate) fn one_line(text: String) -> String {
    if text.contains('\n') {
        text.lines().collect::<Vec<_>>().join("; ")
    } else {
        text
    }
}

/// A message with its causes: some clients say only "db error" themselves. A cause that the text names already is left
/// out.
#[doc(hidden)]
pub fn with_causes(mut text: String, mut cause: Option<&(dyn Error + 'static)>) -> String {
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_message_is_one_line() {
        let error = StoreError::new(StoreErrorKind::Other, "FATAL: no\nHINT: more\n");
        assert_eq!(error.to_string(), "FATAL: no; HINT: more");
    }

    #[test]
    fn a_cause_is_told_once() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let told = with_causes("db error".to_owned(), Some(&denied()));
        assert_eq!(told, format!("db error: {}", denied()));
        assert_eq!(with_causes(told.clone(), Some(&denied())), told);
    }
}
