//! The faults.

use serde::{Deserialize, Serialize};

use crate::once::Step;

/// One fault. Lengths are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub(crate) enum Fault {
    /// SIGKILL for a process; another one starts in its slot.
    Kill { slot: usize },
    /// The same at a step of a run of `run_once`.
    KillInRun { slot: usize, step: Step },
    /// The same in a transaction with which a lock ends.
    KillInTransaction { slot: usize },
    /// SIGSTOP, and SIGCONT after so long.
    Pause { slot: usize, ms: u32 },
    /// The connections of a process are closed, and new ones are refused for so long.
    Cut { slot: usize, ms: u32 },
    /// The same for all processes.
    CutAll { ms: u32 },
    /// The server carries out the next lock statement of a process; its reply is thrown away.
    LoseReply { slot: usize },
    /// The next lock statement of a process never arrives.
    LoseRequest { slot: usize },
    /// The connection breaks under the next lock statement of a process; the statement arrives so much later.
    DeliverLate { slot: usize, ms: u32 },
    /// The server carries out the next lock statement of a process twice: at once, or the second time so much later.
    Repeat { slot: usize, ms: Option<u32> },
    /// Nothing passes in either direction, and no connection breaks.
    BlackHole { slot: usize, ms: u32 },
    /// Statements arrive, and no reply comes back.
    Deaf { slot: usize, ms: u32 },
    /// Each reply comes `delay` later.
    Slow { slot: usize, delay: u32, ms: u32 },
    /// No commit ends for so long; its rows are locked meanwhile.
    SlowCommits { ms: u32 },
    /// An administrator ends all sessions of the server, or one.
    Terminate { all: bool },
    /// SIGKILL for the server, and a restart.
    KillServer,
    /// The server is told to stop at once (PostgreSQL: immediate mode; MariaDB: SIGTERM), and restarted.
    StopServer,
    /// The application's pool of a process has no free connection for so long.
    ExhaustPool { slot: usize, ms: u32 },
    /// The server takes no more connections for so long.
    ExhaustServer { ms: u32 },
    /// An operator frees a key by force.
    ForceRelease { key: usize },
    /// An operator revokes a lease.
    Revoke { key: usize },
    /// The wall clock of a process jumps to so many seconds from the true time.
    ClockJump { slot: usize, to_s: i32 },
    /// The server's clock jumps to so many milliseconds from the time by its rate.
    ServerClock { to_ms: i32 },
    /// The primary is killed, or stopped, and comes back after so long; Sentinels may choose another one.
    FailOver { stop: bool, ms: u32 },
    /// The leader of an ensemble is killed, and comes back after so long.
    KillLeader { ms: u32 },
    /// The leader of an ensemble is stopped, and woken after so long.
    StopLeader { ms: u32 },
    /// Most servers of an ensemble are killed, and come back after so long.
    LoseQuorum { ms: u32 },
    /// Another transaction locks the SQLite file.
    LockFile { ms: u32 },
    /// The power fails: the server is killed, and its disk forgets what was not synced. Then both start again.
    LosePower,
    /// Nothing more fits on the server's disk for so long.
    FillDisk { ms: u32 },
    /// Nothing can be synced for so long (EIO), and what was not synced is lost. Then the server and its disk start again.
    FailDisk { ms: u32 },
    /// The server's disk is read-only after an error of its file system. After so long both start again.
    ReadOnlyDisk { ms: u32 },
}

impl Fault {
    /// The slot, if the fault is of one process.
    pub(crate) fn slot(&self) -> Option<usize> {
        match *self {
            Self::Kill { slot }
            | Self::KillInRun { slot, .. }
            | Self::KillInTransaction { slot }
            | Self::Pause { slot, .. }
            | Self::Cut { slot, .. }
            | Self::LoseReply { slot }
            | Self::LoseRequest { slot }
            | Self::DeliverLate { slot, .. }
            | Self::Repeat { slot, .. }
            | Self::BlackHole { slot, .. }
            | Self::Deaf { slot, .. }
            | Self::Slow { slot, .. }
            | Self::ExhaustPool { slot, .. }
            | Self::ClockJump { slot, .. } => Some(slot),
            _ => None,
        }
    }

    /// The primary or the leader goes away, and another one may be chosen.
    pub(crate) fn takes_the_leader(&self) -> bool {
        matches!(
            self,
            Self::FailOver { .. }
                | Self::KillLeader { .. }
                | Self::StopLeader { .. }
                | Self::LoseQuorum { .. }
        )
    }

    /// An operator's order about a key.
    pub(crate) fn is_an_order(&self) -> bool {
        matches!(self, Self::ForceRelease { .. } | Self::Revoke { .. })
    }

    /// One session or more are ended at a moment of the fault, and others go on.
    pub(crate) fn breaks_sessions(&self) -> bool {
        matches!(
            self,
            Self::Terminate { .. } | Self::LoseReply { .. } | Self::LoseRequest { .. } | Self::Repeat { .. }
        )
    }

    /// A server that is alone is brought down, or may crash, and is started again.
    pub(crate) fn crashes_the_server(&self) -> bool {
        matches!(
            self,
            Self::KillServer
                | Self::StopServer
                | Self::LosePower
                | Self::FillDisk { .. }
                | Self::FailDisk { .. }
                | Self::ReadOnlyDisk { .. }
        )
    }

    /// The store serves nobody until a server is back.
    pub(crate) fn is_an_outage(&self) -> bool {
        self.takes_the_leader() || self.crashes_the_server()
    }

    /// For tables.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kill { .. } => "process killed (SIGKILL)",
            Self::KillInRun { step, .. } => match step {
                Step::BeforeTheWork => "process killed before the work of a run (SIGKILL)",
                Step::AfterTheWork => "process killed after the work of a run (SIGKILL)",
                Step::BeforeTheCommit => "process killed before the commit of a run (SIGKILL)",
                Step::AfterTheCommit => "process killed after the commit of a run (SIGKILL)",
            },
            Self::KillInTransaction { .. } => "process killed in a transaction (SIGKILL)",
            Self::Pause { .. } => "process stopped (SIGSTOP)",
            Self::Cut { .. } => "connections of a process cut",
            Self::CutAll { .. } => "all connections cut",
            Self::LoseReply { .. } => "reply lost after the server committed",
            Self::LoseRequest { .. } => "request lost",
            Self::DeliverLate { .. } => "request delivered late",
            Self::Repeat { ms: None, .. } => "request delivered twice",
            Self::Repeat { ms: Some(_), .. } => "request delivered, and once more late",
            Self::BlackHole { .. } => "traffic black-holed",
            Self::Deaf { .. } => "replies black-holed",
            Self::Slow { .. } => "traffic slowed",
            Self::SlowCommits { .. } => "commits held back",
            Self::Terminate { .. } => "sessions ended by an administrator",
            Self::KillServer => "server killed (SIGKILL) and restarted",
            Self::StopServer => "server stopped at once and restarted",
            Self::ExhaustPool { .. } => "application's pool exhausted",
            Self::ExhaustServer { .. } => "server's connections exhausted",
            Self::ForceRelease { .. } => "key freed by force",
            Self::Revoke { .. } => "lease revoked",
            Self::ClockJump { .. } => "client's wall clock jumped",
            Self::ServerClock { .. } => "server's clock jumped",
            Self::FailOver { stop: false, .. } => "primary killed (SIGKILL), and back as a replica",
            Self::FailOver { stop: true, .. } => "primary stopped (SIGSTOP), and woken",
            Self::KillLeader { .. } => "leader killed (SIGKILL), and back",
            Self::StopLeader { .. } => "leader stopped (SIGSTOP), and woken",
            Self::LoseQuorum { .. } => "quorum killed (SIGKILL), and back",
            Self::LockFile { .. } => "file kept by another transaction",
            Self::LosePower => "power lost, and back",
            Self::FillDisk { .. } => "disk full",
            Self::FailDisk { .. } => "disk fails (EIO), and is mounted again",
            Self::ReadOnlyDisk { .. } => "disk read-only, and is mounted again",
        }
    }
}
