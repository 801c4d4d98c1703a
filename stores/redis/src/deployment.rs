//! One server, the primary that Sentinels name, or a cluster: where a call goes.

use std::sync::Arc;

use dblock_core::store::StoreError;
use redis::aio::PubSub;

use crate::acknowledge::Acknowledgement;
use crate::call::Call;
use crate::cluster::Cluster;
use crate::login::Clients;
use crate::session::{Answer, Server, Way};
use crate::shards::Shards;
use crate::url::Place;

#[derive(Debug)]
pub(crate) enum Deployment {
    Server(Arc<Server>),
    Cluster { cluster: Box<Cluster>, shards: Shards },
}

impl Deployment {
    pub(crate) fn new(place: Place) -> Self {
        let server = |way| Self::Server(Arc::new(Server::new(way, false)));
        match place {
            Place::Server(target) => server(Way::Server(target)),
            Place::Sentinels(sentinels) => server(Way::Sentinels(sentinels)),
            Place::Cluster { login, seeds, shards } => Self::Cluster {
                cluster: Box::new(Cluster::new(login, seeds)),
                shards: Shards::new(shards),
            },
        }
    }

    /// The same place, with connections of its own.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Server(server) => Self::Server(Arc::new(server.again())),
            Self::Cluster { cluster, shards } => Self::Cluster {
                cluster: Box::new(cluster.again()),
                shards: shards.again(),
            },
        }
    }

    /// The servers that must have the writes, before any is sent.
    pub(crate) fn acknowledged_by(self, acknowledgement: Acknowledgement) -> Self {
        match self {
            Self::Server(server) => {
                let server = Arc::into_inner(server).expect("nobody has it before the store is used");
                Self::Server(Arc::new(server.acknowledged_by(Some(acknowledgement))))
            }
            Self::Cluster { cluster, shards } => Self::Cluster {
                cluster: Box::new(cluster.acknowledged_by(acknowledgement)),
                shards,
            },
        }
    }

    /// The same, by clients that are made in this way, before any is.
    pub(crate) fn made_by(self, clients: Clients) -> Self {
        match self {
            Self::Server(server) => {
                let server = Arc::into_inner(server).expect("nobody has it before the store is used");
                Self::Server(Arc::new(server.made_by(clients)))
            }
            Self::Cluster { cluster, shards } => Self::Cluster {
                cluster: Box::new(cluster.made_by(clients)),
                shards,
            },
        }
    }

    /// The shard of a key, where there are shards.
    pub(crate) fn shard(&self, key: &str) -> Option<u16> {
        match self {
            Self::Server(_) => None,
            Self::Cluster { shards, .. } => Some(shards.of(key)),
        }
    }

    /// How many parts there are that may hang by themselves.
    pub(crate) fn parts(&self) -> usize {
        match self {
            Self::Server(_) => 1,
            Self::Cluster { shards, .. } => shards.number().into(),
        }
    }

    /// Makes sure that all programs that share locks look for a key in the same place.
    pub(crate) async fn agree(&self, prefix: &str) -> Result<(), StoreError> {
        match self {
            Self::Server(_) => Ok(()),
            Self::Cluster { cluster, shards } => shards.agree(cluster, prefix).await,
        }
    }

    /// The databases of a server share its channels, and each has rows of its own.
    pub(crate) fn database(&self) -> i64 {
        match self {
            Self::Server(server) => server.database(),
            Self::Cluster { .. } => 0,
        }
    }

    /// Carries out a call once.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<Answer, StoreError> {
        match self {
            Self::Server(server) => server.run(call).await,
            Self::Cluster { cluster, .. } => cluster.run(call).await,
        }
    }

    /// All servers that have keys, with their addresses where there are several.
    pub(crate) async fn servers(&self) -> Result<Vec<(String, Arc<Server>)>, StoreError> {
        match self {
            Self::Server(server) => Ok(vec![(String::new(), Arc::clone(server))]),
            Self::Cluster { cluster, .. } => cluster.primaries().await,
        }
    }

    /// A connection for listening alone, and the address that it leads to.
    pub(crate) async fn listener(&self) -> Result<(PubSub, String), StoreError> {
        match self {
            Self::Server(server) => server.listener().await,
            Self::Cluster { cluster, .. } => cluster.listener().await,
        }
    }

    /// Completes when the server at the address of a listener is none of the cluster's any more.
    pub(crate) async fn left(&self, address: &str) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Cluster { cluster, .. } => cluster.left(address).await,
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::Server(server) => server.close(),
            Self::Cluster { cluster, .. } => cluster.close(),
        }
    }
}
