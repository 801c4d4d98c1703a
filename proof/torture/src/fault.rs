//! The faults, as data.

use serde::{Deserialize, Serialize};

use crate::once::Step;

/// One fault. Lengths are in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub(crate) enum Fault {
    /// SIGKILL for a process; another takes its seat.
    Kill { seat: usize },
    /// The same at a step of a run.
    KillInRun { seat: usize, step: Step },
    /// SIGSTOP, and SIGCONT after so long.
    Pause { seat: usize, ms: u32 },
    /// The connections of a process are closed, and new ones for so long.
    Cut { seat: usize, ms: u32 },
    /// Those of all processes.
    CutAll { ms: u32 },
    /// The server carries out the next lock statement of a process; its reply is thrown away.
    LoseReply { seat: usize },
    /// The next lock statement of a process never arrives.
    LoseRequest { seat: usize },
    /// The connection breaks under the next lock statement of a process, and the server gets the statement
    /// so much later.
    DeliverLate { seat: usize, ms: u32 },
    /// Nothing gets through in either direction, and no connection breaks.
    BlackHole { seat: usize, ms: u32 },
    /// Statements arrive, and no reply comes back.
    Deaf { seat: usize, ms: u32 },
    /// Each reply comes so much later.
    Slow { seat: usize, delay: u32, ms: u32 },
    /// No commit of any process ends for so long; their rows stay locked meanwhile.
    SlowCommits { ms: u32 },
    /// An administrator ends all sessions of the server, or one.
    Terminate { all: bool },
    /// SIGKILL for the server, and a restart.
    KillServer,
    /// The server is told to stop at once (PostgreSQL: immediate mode; MariaDB: SIGTERM), and restarted.
    StopServer,
    /// The application's pool of a process has no free connection for so long.
    ExhaustPool { seat: usize, ms: u32 },
    /// The server takes no more connections for so long.
    ExhaustServer { ms: u32 },
    /// An operator frees a key by force.
    ForceRelease { key: usize },
    /// An operator revokes a lease.
    Revoke { key: usize },
    /// The wall clock of a process jumps to so many seconds from the true time.
    ClockJump { seat: usize, to_s: i32 },
    /// The primary is killed, or stopped, for so long that another one takes its place, and comes back.
    FailOver { stop: bool, ms: u32 },
    /// The leader of an ensemble is killed, and comes back after so long.
    KillLeader { ms: u32 },
    /// The leader of an ensemble is stopped, and woken after so long.
    StopLeader { ms: u32 },
    /// Most servers of an ensemble are killed, and come back after so long.
    LoseQuorum { ms: u32 },
    /// A transaction of somebody else keeps the SQLite file.
    LockFile { ms: u32 },
}

impl Fault {
    /// The seat of the process that it is for, if it is for one.
    pub(crate) fn seat(&self) -> Option<usize> {
        match *self {
            Self::Kill { seat }
            | Self::KillInRun { seat, .. }
            | Self::Pause { seat, .. }
            | Self::Cut { seat, .. }
            | Self::LoseReply { seat }
            | Self::LoseRequest { seat }
            | Self::DeliverLate { seat, .. }
            | Self::BlackHole { seat, .. }
            | Self::Deaf { seat, .. }
            | Self::Slow { seat, .. }
            | Self::ExhaustPool { seat, .. }
            | Self::ClockJump { seat, .. } => Some(seat),
            _ => None,
        }
    }

    /// Of several servers that which decides goes away, and others may choose another.
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

    /// It takes the store away from everybody, until a server serves again.
    pub(crate) fn is_an_outage(&self) -> bool {
        self.takes_the_leader() || matches!(self, Self::KillServer | Self::StopServer)
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
            Self::Pause { .. } => "process stopped (SIGSTOP)",
            Self::Cut { .. } => "connections of a process cut",
            Self::CutAll { .. } => "all connections cut",
            Self::LoseReply { .. } => "reply lost after the server committed",
            Self::LoseRequest { .. } => "request lost",
            Self::DeliverLate { .. } => "request delivered late",
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
            Self::FailOver { stop: false, .. } => "primary killed (SIGKILL), and back as a replica",
            Self::FailOver { stop: true, .. } => "primary stopped (SIGSTOP), and woken",
            Self::KillLeader { .. } => "leader killed (SIGKILL), and back",
            Self::StopLeader { .. } => "leader stopped (SIGSTOP), and woken",
            Self::LoseQuorum { .. } => "quorum killed (SIGKILL), and back",
            Self::LockFile { .. } => "file kept by another transaction",
        }
    }
}
