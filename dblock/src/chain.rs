//! Call chains: the locks that the running code runs under.
//!
//! A chain travels in a tokio task-local around each body, innermost lock first. So a nested call finds the
//! lease that it re-enters. Threads, tasks and processes play no part.

use std::future::Future;
use std::sync::Arc;

use tokio::task::futures::TaskLocalFuture;
use tokio::task::{Id, try_id};

use crate::Key;
use crate::engine::{EngineHandle, Hold, Lease};

tokio::task_local! {
    static CHAIN: Link;
}

/// A future that runs in a chain.
pub(crate) type Linked<F> = TaskLocalFuture<Link, F>;

/// The innermost locks of a chain, which were taken together, with those around them.
#[derive(Debug, Clone)]
pub(crate) struct Link(Arc<Node>);

#[derive(Debug)]
struct Node {
    /// One, or those that were taken together, in the order of their keys: the last one is the innermost.
    leases: Vec<Lease>,
    around: Option<Link>,
    body: Body,
}

/// What runs under the locks of a node.
#[derive(Debug, PartialEq, Eq)]
enum Body {
    /// A future, which sees the node while it is polled.
    Async,
    /// Code on this thread, perhaps in a task. A runtime that it drives may poll other tasks meanwhile: they are in no chain.
    Blocking(Option<Id>),
}

impl Link {
    /// The innermost lock that the running code runs under.
    pub(crate) fn current() -> Option<Self> {
        let link: Self = CHAIN.try_with(Clone::clone).ok()?;
        let is_of_here = link.0.body == Body::Async || link.0.body == Body::Blocking(try_id());
        is_of_here.then_some(link)
    }

    /// Adds locks that were taken together to the running code's chain, as the innermost ones.
    pub(crate) fn inside_current(holds: &[Hold]) -> Self {
        Self::of(holds, Body::Async)
    }

    /// As [`inside_current`](Self::inside_current), and runs a body under them that is not async.
    pub(crate) fn run_on_thread<T>(holds: &[Hold], body: impl FnOnce() -> T) -> T {
        CHAIN.sync_scope(Self::of(holds, Body::Blocking(try_id())), body)
    }

    /// Runs `child` in this chain, in a task of its own.
    pub(crate) fn scope_child<F: Future>(&self, child: F) -> Linked<F> {
        self.around_body(Body::Async).scope(child)
    }

    /// Runs `child` in this chain, on this thread.
    pub(crate) fn run_child<T>(&self, child: impl FnOnce() -> T) -> T {
        CHAIN.sync_scope(self.around_body(Body::Blocking(try_id())), child)
    }

    fn around_body(&self, body: Body) -> Self {
        let Node { leases, around, .. } = &*self.0;
        Self(Arc::new(Node {
            leases: leases.clone(),
            around: around.clone(),
            body,
        }))
    }

    fn of(holds: &[Hold], body: Body) -> Self {
        let node = Node {
            leases: holds.iter().map(|hold| hold.lease().clone()).collect(),
            around: Self::current(),
            body,
        };
        Self(Arc::new(node))
    }

    /// Runs `body` under these locks.
    pub(crate) fn scope<F: Future>(self, body: F) -> Linked<F> {
        CHAIN.scope(self, body)
    }

    /// The next locks outwards.
    pub(crate) fn around(&self) -> Option<Self> {
        self.0.around.clone()
    }

    /// From the innermost lock outwards.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        let links = std::iter::successors(Some(self), |link| link.0.around.as_ref());
        links.flat_map(|link| link.0.leases.iter().rev())
    }

    /// The lease on `key` that the chain holds from this engine.
    pub(crate) fn find(&self, engine: &EngineHandle, key: &Key) -> Option<&Lease> {
        self.iter().find(|lease| lease.is_of(engine, key))
    }

    /// The innermost locks: one, or those that were taken together, in the order of their keys.
    pub(crate) fn leases(&self) -> &[Lease] {
        &self.0.leases
    }
}
