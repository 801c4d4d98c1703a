//! The events of a history.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::once;
use crate::process_id::ProcessId;
use crate::settings::Settings;

/// A line of a history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// When.
    pub(crate) at: i64,
    #[serde(flatten)]
    pub(crate) event: Event,
}

/// Something that happened. Calls are numbered within their process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "e", rename_all = "snake_case")]
pub(crate) enum Event {
    /// Worker: a call for a lock is about to be made.
    Ask {
        call: u64,
        key: String,
        form: Form,
        ttl_ms: u32,
        wait_ms: u32,
        renew: bool,
        hold_min_ms: Option<u32>,
        max_hold_ms: Option<u32>,
        /// It shares the key, while fewer than this are inside.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        limit: Option<u32>,
        /// The call of the same chain inside whose section this one is made. The worker itself passes it to
        /// nested calls and to tasks that inherit.
        within: Option<u64>,
        /// It is a second call in the transaction of the call `within`, which has returned.
        #[serde(default)]
        again: bool,
        /// The call inside whose section this call's task was spawned without `inherit`: another chain.
        spawned_by: Option<u64>,
    },
    /// Worker: the section of a call begins.
    Enter { call: u64, owner: String, token: i64 },
    /// Worker: from now on the section blocks its thread, for so long by its plan.
    Block { call: u64, ms: u32 },
    /// Worker: the section reached an await after it blocked its thread. Not written by a section that ends
    /// first.
    Unblock { call: u64 },
    /// Worker: the section has ended; at `last_step` it last ran and had the lock as far as it knew.
    Leave { call: u64, last_step: i64, how: How },
    /// Worker: the lock is in a ticket now, which was asked for at `since`. It keeps the key until then, unless somebody
    /// adopts it.
    Ticket {
        call: u64,
        #[serde(default)]
        since: i64,
        until: i64,
    },
    /// Worker: a call is about to adopt the ticket that a call of a process has made.
    Adopts {
        call: u64,
        giver: ProcessId,
        ticket: u64,
    },
    /// Worker: the guard's release was confirmed.
    Released { call: u64 },
    /// Worker: the call has ended.
    Answer {
        call: u64,
        end: End,
        /// The holder's token, if the key was busy.
        by: Option<i64>,
        /// The message of an error that `end` does not tell.
        text: Option<String>,
    },
    /// Worker: the database confirmed the commit of a call's transaction, or its rollback.
    Concluded { call: u64, committed: bool },
    /// Worker: an administrator is about to end the session of a call's transaction.
    SessionEnds { call: u64 },
    /// Worker: nothing in the process ran for so long until now.
    Stall { ms: u32 },
    /// Worker: the database confirmed the commit of a transfer.
    Transferred { id: i64 },
    /// Worker, and runner at the end: a call of `run_once` is about to be made.
    OnceAsk {
        call: u64,
        run: u64,
        ttl_ms: u32,
        /// It waits for so long, for all locks before its body. Unknown in older histories.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wait_ms: Option<u32>,
        /// The lease is renewed for as long as the body runs.
        renews: bool,
    },
    /// Worker: the write of a record was delayed or lost on purpose, or its answer was.
    Troubled {
        key: String,
        /// The write begins an attempt. Others end one, or take it back.
        begins: bool,
    },
    /// Worker, and runner at the end: an attempt of a run has reached a step.
    OnceStep {
        call: u64,
        run: u64,
        attempt: u32,
        step: once::Step,
    },
    /// Worker, and runner at the end: a call of `run_once` has ended.
    OnceAnswer {
        call: u64,
        run: u64,
        answer: once::Answer,
    },

    /// Resource: a section's write arrived.
    Write {
        from: ProcessId,
        call: u64,
        key: String,
        token: i64,
        sent: i64,
        /// The largest earlier token of the key.
        last: i64,
        accepted: bool,
    },

    /// Runner: the run begins.
    Begin {
        store: String,
        seed: u64,
        end: i64,
        /// A leader of this store that is stopped and woken may end leases that are in use.
        woken_leader_revokes: bool,
    },
    /// Runner: the clock of a process, or the server's, runs at so many thousandths of the true rate.
    Clock { process: Option<ProcessId>, rate: u32 },
    /// Runner: a process was started.
    Started {
        process: ProcessId,
        pid: u32,
        settings: Settings,
    },
    /// Runner: a process is killed now.
    Killed { process: ProcessId },
    /// Runner: a process ended, with this exit code.
    Ended { process: ProcessId, code: Option<i32> },
    /// Runner: a process did not end although it was asked to.
    Stuck { process: ProcessId },
    /// Runner: a process is stopped from now on.
    Paused { process: ProcessId },
    /// Runner: a process goes on.
    Continued { process: ProcessId },
    /// Runner: an operator is about to free a key by force.
    Forcing { key: String },
    /// Runner: the order has ended; whether it freed the key, if that is known.
    Forced { key: String, freed: Option<bool> },
    /// Runner: a fault is about to be injected.
    Fault { fault: Fault },
    /// Runner: the fault has ended, or could not be injected.
    Done { fault: Fault, injected: bool },
    /// Runner: no more faults from now on.
    Calm,
    /// Runner: commits are slow from now on, and nothing else is wrong.
    SlowCommits,
    /// Runner: all processes have ended and their leases must be over; these rows are held.
    Quiet { held: Vec<Row> },
    /// Runner: the accounts at the end.
    Bank {
        accounts: Vec<AccountEnd>,
        /// Every line of the ledger, by transfer.
        transfers: Vec<i64>,
    },
    /// Runner: the counters at the end.
    Counted { counts: Vec<Count> },
    /// Runner: the runs of `run_once` at the end.
    OnceEnds { ends: Vec<once::End> },
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// `locks.lock(key).run(body)`.
    #[serde(alias = "with")]
    Run,
    /// The attribute.
    Attribute,
    /// A guard, with the section inside `enter`.
    Guard,
    /// A guard that a ticket was adopted for.
    Adopt,
    /// A guard whose holder checks `is_lost` itself.
    BareGuard,
    /// `run` and `on_lost = "signal"`.
    Signal,
    /// `dblock::inherit` in a task of its own.
    Inherit,
    /// The body of `run_once`. `Ask` is written when the body begins.
    Once,
    /// `run` on two keys. The history has two calls, one for each key, the second within the first; so it has
    /// for the next two forms.
    #[serde(alias = "with_all")]
    RunAll,
    /// The attribute with `keys`.
    AttributeAll,
    /// A guard of two keys.
    GuardAll,
    /// `transaction`. With this form and the next a transfer writes no section; the bank shows its effects.
    Transaction,
    /// The attribute with `tx`. Its section lasts until the caller commits.
    InTransaction,
}

impl Form {
    /// The lock ends with a transaction.
    pub(crate) fn ends_with_transaction(self) -> bool {
        matches!(self, Self::Transaction | Self::InTransaction)
    }

    /// The call takes two keys. It waits for one at a time, and may hold the other meanwhile.
    pub(crate) fn takes_two(self) -> bool {
        matches!(self, Self::RunAll | Self::AttributeAll | Self::GuardAll)
    }
}

/// How a section ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    Returned,
    Dropped,
    Panicked,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum End {
    Done,
    Busy,
    Timeout,
    Lost,
    Store,
    /// An error of the store after which the same call need not be made again.
    Refused,
    Shutdown,
    /// An error that no fault explains.
    Other,
    Dropped,
    Panicked,
}

/// A row that is held at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) key: String,
    pub(crate) token: i64,
    pub(crate) remaining_ms: u64,
    pub(crate) holder: String,
}

/// An account at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AccountEnd {
    pub(crate) account: i32,
    pub(crate) opened_with: i64,
    pub(crate) balance: i64,
    /// The sum of its lines in the ledger.
    pub(crate) ledger: i64,
}

/// A counter at the end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) key: String,
    pub(crate) number: i64,
    /// Number, token and id of each line, by number.
    pub(crate) lines: Vec<(i64, i64, i64)>,
}
