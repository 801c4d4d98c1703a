//! Why a command failed: its message, and the exit code. docs/cli.md lists the codes.

use std::io;
use std::process::ExitCode;

use dblock::store::StoreErrorKind;
use dblock::{LockError, RunError, TimeoutCause};

use crate::cli::StoreArguments;
use crate::output;
use crate::remedy::{of_this_program, with_options};

/// The exit codes. Those from 64 on are those of `sysexits.h`, or close to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Code {
    Done,
    /// The answer is no: no such row, not held, or `doctor` found what breaks a guarantee.
    No,
    /// A mistake in the arguments, or a URL that cannot be used, whatever the database would say.
    Usage,
    /// The store cannot be reached, or did not answer in time.
    Unavailable,
    /// A mistake of this program.
    Internal,
    /// The operating system refuses, such as a port that is in use.
    System,
    /// Something could not be written.
    Output,
    /// Another process holds the lock.
    Busy,
    /// The same, with the code that the caller wants.
    BusyAs(u8),
    /// The lease ended before the command did.
    Lost,
    /// The database refuses: password, grants.
    Refused,
    /// The database, or its file, is not one that locks can be kept in: no tables, or tables that do not fit.
    Config,
    /// An attempt of the run was interrupted, and somebody has to decide.
    InDoubt,
    /// The command cannot be executed.
    NotExecutable,
    /// There is no such command.
    NotFound,
    /// Ended by Ctrl-C, or by another SIGINT.
    Interrupted,
    /// Anything else: of the command, or of a signal.
    Of(u8),
}

impl Code {
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::No => 1,
            Self::Usage => 64,
            Self::Unavailable => 69,
            Self::Internal => 70,
            Self::System => 71,
            Self::Output => 74,
            Self::Busy => 75,
            Self::Lost => 76,
            Self::Refused => 77,
            Self::Config => 78,
            Self::InDoubt => 79,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
            Self::Interrupted => 130,
            Self::BusyAs(code) | Self::Of(code) => code,
        }
    }

    /// The `error` of the JSON.
    fn name(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::No => "no",
            Self::Usage => "usage",
            Self::Unavailable => "unavailable",
            Self::Internal => "internal",
            Self::System => "system",
            Self::Output => "output",
            Self::Busy | Self::BusyAs(_) => "busy",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Config => "config",
            Self::InDoubt => "in_doubt",
            Self::NotExecutable => "not_executable",
            Self::NotFound => "not_found",
            Self::Interrupted | Self::Of(_) => "signal",
        }
    }
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        code.number().into()
    }
}

/// A command that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    /// Empty when there is nobody to read it.
    message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The same with another exit code.
    pub(crate) fn with(self, code: Code) -> Self {
        Self { code, ..self }
    }

    /// The same with more to read.
    pub(crate) fn with_remedy(self, remedy: &str) -> Self {
        Self::new(self.code, format!("{}; {remedy}", self.message))
    }

    /// On stderr, because stdout has the answer, or is the command's.
    pub(crate) fn print(&self, store: &StoreArguments) {
        if self.message.is_empty() {
            return;
        }
        let message = with_options(&self.message, store);
        if store.json {
            let (code, name) = (self.code.number(), self.code.name());
            let told = serde_json::json!({"error": name, "message": message, "exit_code": code});
            // A text of JSON can always be written.
            output::told(&output::json_text(&told).unwrap_or_default());
        } else {
            output::told(&format!("dblock: {}", output::printable(&message)));
        }
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let code = match &error {
            // The store did not answer: nobody knows whether the lock is busy.
            LockError::Timeout { cause, .. } if *cause == TimeoutCause::NoAnswer => Code::Unavailable,
            LockError::Busy { .. } | LockError::Timeout { .. } => Code::Busy,
            LockError::Lost { .. } => Code::Lost,
            LockError::Store { source, .. } | LockError::Unconfirmed { source, .. } => match source.kind() {
                StoreErrorKind::Schema | StoreErrorKind::Unsupported => Code::Config,
                StoreErrorKind::Refused => Code::Refused,
                _ if source.is_retryable() => Code::Unavailable,
                _ => Code::Internal,
            },
            LockError::Invalid { .. } => Code::Usage,
            LockError::Run { reason, .. } => match reason {
                RunError::InDoubt { .. } => Code::InDoubt,
                RunError::Unrecorded { .. } => Code::Unavailable,
                _ => Code::Internal,
            },
            _ => Code::Internal,
        };
        Self::new(code, of_this_program(&error.to_string()))
    }
}

impl From<io::Error> for Failure {
    /// An answer that cannot be written. A reader that has gone, such as `head`, has all that it wants.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(Code::Done, "");
        }
        Self::new(Code::Output, format!("the answer cannot be written: {error}"))
    }
}
