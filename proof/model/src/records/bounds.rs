//! The kinds of work, and the rules that can be taken away.

/// The order of the work and its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `Run::complete_in`: in one transaction.
    CompleteIn,
    /// `on_crash = "retry"`.
    Retry,
    /// `on_crash = "stop"`.
    Stop,
}

guards! {
    /// A begin is conditioned on the record that was read. Without it: on nothing.
    BeginChecksRecord,
    /// A record that was read is a crash only if the lease lived when it was read, and no record is replaced
    /// by one with a smaller token. Without it: neither.
    CrashIsOver,
    /// An attempt has the number after that of the record. Without it: it is the first.
    AttemptsAreCounted,
    /// A success is replayed, and the store does not replace it.
    SuccessIsFinal,
    /// An outcome is conditioned on the attempt whose it is. Without it: on nothing.
    FinishChecksAttempt,
    /// After a crash nobody begins.
    StopStops,
    /// `complete_in` is conditioned on the lease and on the attempt. Without it: on neither.
    CompleteChecksAttempt,
    /// The transaction of `complete_in` locks the rows of the lease and of the record until it ends.
    TransactionLocksRows,
    /// The work is in the transaction of `complete_in`. Without it: it is done before.
    WorkIsInTransaction,
    /// Records that are processing are not purged.
    PurgeSparesProcessing,
}
