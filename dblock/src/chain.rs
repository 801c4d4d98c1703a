//! Call chains: the locks that the running code runs under.
//!
//! A chain travels in a tokio task-local around each body, innermost lock first. So a nested call finds the
//! lease that it re-enters. Threads, tasks and processes play no part.

use std::future::Future;
use std::sync::Arc;

use tokio::task::futures::TaskLocalFuture;

use crate::engine::{EngineHandle, Lease};
use crate::key::Key;

tokio::task_local! {
    static CHAIN: Link;
}

/// A future that runs in a chain.
pub(crate) type Linked<F> = TaskLocalFuture<Link, F>;

/// The innermost lock of a chain, with those around it.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Node>);

#[derive(Debug)]
struct Node {
    lease: Lease,
    engine: EngineHandle,
    around: Option<Link>,
}

impl Link {
    /// The innermost lock that the running code runs under.
    pub(crate) fn current() -> Option<Self> {
        CHAIN.try_with(Clone::clone).ok()
    }

    /// Adds a lock to the running code's chain, as the innermost one.
    pub(crate) fn inside_current(lease: &Lease, engine: &EngineHandle) -> Self {
        let node = Node {
            lease: lease.clone(),
            engine: engine.clone(),
            around: Self::current(),
        };
        Self(Arc::new(node))
    }

    /// Runs `body` under this lock.
    pub(crate) fn scope<F: Future>(self, body: F) -> Linked<F> {
        CHAIN.scope(self, body)
    }

    /// The next lock outwards.
    pub(crate) fn around(&self) -> Option<Self> {
        self.0.around.clone()
    }

    /// From the innermost lock outwards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Lease, &EngineHandle)> {
        let links = std::iter::successors(Some(self), |link| link.0.around.as_ref());
        links.map(|link| (&link.0.lease, &link.0.engine))
    }

    /// The lease on `key` that the chain holds from this engine.
    pub(crate) fn find(&self, engine: &EngineHandle, key: &Key) -> Option<&Lease> {
        let same = |found: &(&Lease, &EngineHandle)| found.1.id() == engine.id() && found.0.key() == key;
        self.iter().find(same).map(|(lease, _)| lease)
    }

    pub(crate) fn lease(&self) -> &Lease {
        &self.0.lease
    }

    #[cfg(feature = "sql")]
    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.0.engine
    }
}
