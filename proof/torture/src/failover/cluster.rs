//! The servers, and what happens to them.

use dblock_servers::{Galera, Pair, Purpose};

/// Servers that replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// A PostgreSQL primary and its synchronous standby.
    Postgres,
    /// Three nodes of MariaDB with Galera, which each manager names in another order.
    Galera,
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
    /// The node in use is killed, and comes back when another one is used.
    KillNode,
    /// The node in use is stopped. If that lasts, the others go on without it, and it must join them again.
    StopNode,
    /// The other nodes are killed. The one in use refuses everything until they are back.
    NoQuorum,
}

impl Fault {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::KillPrimary => "primary killed (SIGKILL), standby promoted",
            Self::StandbyAway => "standby killed and started again",
            Self::TwoPrimaries => "standby promoted beside the primary, which goes on",
            Self::KillNode => "node in use killed (SIGKILL)",
            Self::StopNode => "node in use stopped (SIGSTOP) and woken",
            Self::NoQuorum => "the two others killed (SIGKILL) and started again",
        }
    }

    /// How long the fault lasts before the repair, in ms.
    pub(super) fn lasts(self) -> std::ops::Range<u64> {
        match self {
            Self::KillPrimary | Self::StandbyAway | Self::NoQuorum => 500..4_000,
            // Galera waits for 5 seconds until it goes on without a silent node.
            Self::StopNode => 500..12_000,
            Self::TwoPrimaries | Self::KillNode => 0..1,
        }
    }
}

/// A running cluster.
#[derive(Debug)]
pub(super) enum Cluster {
    Postgres(Box<Pair>),
    /// The nodes, and the one that was in use when the latest fault began.
    Galera(Box<Galera>, usize),
}

impl Cluster {
    pub(super) async fn start(kind: Kind) -> anyhow::Result<Self> {
        Ok(match kind {
            Kind::Postgres => Self::Postgres(Box::new(Pair::start(Purpose::Torture).await?)),
            Kind::Galera => Self::Galera(Box::new(Galera::start(Purpose::Torture).await?), 0),
        })
    }

    /// The URL for a manager. It names Galera's nodes from `first` on.
    pub(super) fn url(&self, first: usize) -> String {
        match self {
            Self::Postgres(pair) => pair.url(),
            Self::Galera(galera, _) => galera.url(first),
        }
    }

    pub(super) fn faults(&self) -> &'static [Fault] {
        match self {
            Self::Postgres(_) => &[Fault::KillPrimary, Fault::StandbyAway, Fault::TwoPrimaries],
            Self::Galera(..) => &[Fault::KillNode, Fault::StopNode, Fault::NoQuorum],
        }
    }

    /// Begins a fault: the server in use can commit nothing. [`repair`](Self::repair) follows.
    pub(super) async fn begin(&mut self, fault: Fault) -> anyhow::Result<()> {
        match self {
            Self::Postgres(pair) => match fault {
                Fault::KillPrimary => pair.primary().kill(),
                Fault::StandbyAway => pair.standby().kill(),
                _ => pair.promote().await?,
            },
            Self::Galera(galera, used) => {
                *used = galera.in_use().await?;
                match fault {
                    Fault::KillNode => galera.nodes[*used].kill(),
                    Fault::StopNode => galera.nodes[*used].pause()?,
                    _ => others(*used).for_each(|node| galera.nodes[node].kill()),
                }
            }
        }
        Ok(())
    }

    /// Makes a server take writes again.
    pub(super) async fn repair(&mut self, fault: Fault) -> anyhow::Result<()> {
        match (self, fault) {
            (Self::Postgres(pair), Fault::KillPrimary) => pair.promote().await,
            (Self::Postgres(pair), Fault::StandbyAway) => pair.standby().restart().await,
            (Self::Galera(galera, used), Fault::StopNode) => galera.nodes[*used].wake(),
            (Self::Galera(galera, used), Fault::NoQuorum) => {
                galera.restart(&others(*used).collect::<Vec<_>>()).await
            }
            _ => Ok(()),
        }
    }

    /// Brings all servers back.
    pub(super) async fn restore(&mut self, fault: Fault) -> anyhow::Result<()> {
        match (self, fault) {
            (Self::Postgres(pair), Fault::KillPrimary | Fault::TwoPrimaries) => pair.follow().await,
            (Self::Galera(galera, used), _) => {
                if fault == Fault::KillNode {
                    galera.restart(&[*used]).await?;
                }
                galera.until_in_step().await
            }
            _ => Ok(()),
        }
    }
}

/// The nodes of three that are not this one.
fn others(node: usize) -> impl Iterator<Item = usize> {
    (0..3).filter(move |other| *other != node)
}
