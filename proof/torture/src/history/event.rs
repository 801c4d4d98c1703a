//! The events that are written down.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::once;
use crate::seat::Life;
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
        way: Way,
        ttl_ms: u32,
        wait_ms: u32,
        renew: bool,
        hold_min_ms: Option<u32>,
        max_hold_ms: Option<u32>,
        /// The call inside of whose section this one is made, by the same chain: what the worker itself hands
        /// down to nested calls and to tasks that inherit.
        within: Option<u64>,
        /// The call inside of whose section its task was spawned without `inherit`: another chain.
        spawned_by: Option<u64>,
    },
    /// Worker: the section of a call begins.
    Enter { call: u64, owner: String, token: i64 },
    /// Worker: the section will now keep its thread without reaching an await, for so long as it is planned.
    Block { call: u64, ms: u32 },
    /// Worker: the section reached an await after it kept its thread. One that ends before it does never says
    /// so.
    Unblock { call: u64 },
    /// Worker: the section has ended, and this is when it was last alive and knew that it had the lock.
    Leave { call: u64, last_step: i64, how: How },
    /// Worker: the guard's release was confirmed.
    Released { call: u64 },
    /// Worker: the call has ended.
    Answer {
        call: u64,
        end: End,
        /// The token of the holder that was in the way, when it was busy.
        by: Option<i64>,
        /// The message, where it says more.
        text: Option<String>,
    },
    /// Worker: nothing in the process ran for so long before this.
    Stall { ms: u32 },
    /// Worker: a transfer was committed, as the database said.
    Transferred { id: i64 },
    /// Worker, and runner at the end: a call of `run_once` is about to be made.
    OnceAsk {
        call: u64,
        run: u64,
        ttl_ms: u32,
        /// Its lease lives for as long as its body.
        renews: bool,
    },
    /// Worker: the write of a record was kept from the store or its answer from the worker.
    Troubled {
        key: String,
        /// It begins an attempt. Others end one, or take it back.
        begins: bool,
    },
    /// Worker, and runner at the end: an attempt of a run has come so far.
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

    /// Resource: a write arrived that was sent at `sent` by a section.
    Write {
        from: Life,
        call: u64,
        key: String,
        token: i64,
        sent: i64,
        /// The largest token that was seen for the key before.
        last: i64,
        accepted: bool,
    },

    /// Runner: the run begins.
    Begin {
        store: String,
        seed: u64,
        end: i64,
        /// A leader of this store that was stopped may end leases that are in use when it is woken.
        woken_leader_revokes: bool,
    },
    /// Runner: a process was started.
    Started {
        life: Life,
        pid: u32,
        settings: Settings,
    },
    /// Runner: a process was killed; it lived until now at least.
    Killed { life: Life },
    /// Runner: a process ended after it was asked to, and its exit code.
    Ended { life: Life, code: Option<i32> },
    /// Runner: a process did not end although it was asked to.
    Stuck { life: Life },
    /// Runner: a process stood still from now on.
    Paused { life: Life },
    /// Runner: a process went on.
    Continued { life: Life },
    /// Runner: an operator is about to free a key by force.
    Forcing { key: String },
    /// Runner: the order was carried out; whether it freed the key, unless that is not known.
    Forced { key: String, freed: Option<bool> },
    /// Runner: a fault is about to be injected.
    Fault { fault: Fault },
    /// Runner: what came of the fault.
    Done { fault: Fault, injected: bool },
    /// Runner: no more faults from now on.
    Calm,
    /// Runner: commits are slow from now on, and nothing else is wrong.
    SlowCommits,
    /// Runner: all processes have gone and their leases must have ended; these rows are held.
    Quiet { held: Vec<Row> },
    /// Runner: what the accounts say at the end.
    Bank {
        accounts: Vec<AccountEnd>,
        /// Every line of the ledger, by transfer.
        transfers: Vec<i64>,
    },
    /// Runner: what is left of the work that was to be done once.
    OnceEnds { ends: Vec<once::End> },
}

/// How a lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Way {
    /// `locks.lock(key).run(body)`.
    With,
    /// The attribute.
    Attribute,
    /// A guard, with the section inside of `enter`.
    Guard,
    /// A guard whose holder looks at `is_lost` by itself.
    BareGuard,
    /// `run` and `on_lost = "signal"`.
    Signal,
    /// `dblock::inherit` in a task of its own.
    Inherit,
    /// The body of `run_once`. Such a call is written down when its body begins.
    Once,
    /// `run` on two keys. Such a call is written down as two, one for each key, the second
    /// one within the first. So are the other two that take keys together.
    WithAll,
    /// The attribute with `keys`.
    AttributeAll,
    /// A guard of two keys.
    GuardAll,
    /// `transaction`. Such a call, and the next one, notes no section: its effects are judged by
    /// the bank.
    Transaction,
    /// The attribute with `tx`.
    InTransaction,
}

impl Way {
    /// Its lock ends with a transaction.
    pub(crate) fn ends_with_transaction(self) -> bool {
        matches!(self, Self::Transaction | Self::InTransaction)
    }

    /// It takes two keys together. It waits for one of them at a time, and may hold the first meanwhile.
    pub(crate) fn takes_two(self) -> bool {
        matches!(self, Self::WithAll | Self::AttributeAll | Self::GuardAll)
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
