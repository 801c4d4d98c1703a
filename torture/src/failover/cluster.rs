//! The servers, and what happens to them.

use dblock_servers::{Pair, Purpose};

/// Servers that replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A PostgreSQL primary and its synchronous standby.
    Postgres,
}

/// The events of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// The primary is killed; its standby is promoted; it comes back as the standby.
    KillPrimary,
    /// No commit ends, because the standby is away.
    StandbyAway,
    /// The standby is promoted beside the primary, which goes on until it becomes the standby.
    TwoPrimaries,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::KillPrimary => "primary killed (SIGKILL), standby promoted",
            Self::StandbyAway => "standby killed and started again",
            Self::TwoPrimaries => "standby promoted beside the primary, which goes on",
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub(super) enum Cluster {
    Postgres(Box<Pair>),
}

impl Cluster {
    pub(super) async fn start(kind: Kind) -> anyhow::Result<Self> {
        match kind {
            Kind::Postgres => Ok(Self::Postgres(Box::new(Pair::start(Purpose::Torture).await?))),
        }
    }

    pub(super) fn url(&self) -> String {
        let Self::Postgres(pair) = self;
        pair.url()
    }

    pub(super) fn faults(&self) -> &'static [Fault] {
        let Self::Postgres(_) = self;
        &[Fault::KillPrimary, Fault::StandbyAway, Fault::TwoPrimaries]
    }

    /// From here on nothing can be committed where the managers commit. With two primaries that is all; else
    /// [`repair`](Self::repair) must follow.
    pub(super) async fn begin(&mut self, fault: Fault) -> anyhow::Result<()> {
        let Self::Postgres(pair) = self;
        match fault {
            Fault::KillPrimary => pair.primary().kill(),
            Fault::StandbyAway => pair.standby().kill(),
            Fault::TwoPrimaries => pair.promote().await?,
        }
        Ok(())
    }

    /// A server takes writes again.
    pub(super) async fn repair(&mut self, fault: Fault) -> anyhow::Result<()> {
        let Self::Postgres(pair) = self;
        match fault {
            Fault::KillPrimary => pair.promote().await,
            Fault::StandbyAway => pair.standby().restart().await,
            Fault::TwoPrimaries => Ok(()),
        }
    }

    /// All servers are there again.
    pub(super) async fn restore(&mut self, fault: Fault) -> anyhow::Result<()> {
        let Self::Postgres(pair) = self;
        match fault {
            Fault::KillPrimary | Fault::TwoPrimaries => pair.follow().await,
            Fault::StandbyAway => Ok(()),
        }
    }
}
