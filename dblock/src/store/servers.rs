//! Several servers of which one takes writes: finds it, and finds it again after a fail-over.
//!
//! The chosen server alone is used until a connection to it fails. Then all are asked at the same time. If an
//! old primary has come back beside the new one, both say that they take writes: the newer history wins. Of
//! servers with the same history the chosen one is kept, or the first of the list is taken.
//!
//! In a Galera cluster the nodes themselves store which one is in use (`mysql::node`). The others stand by, and
//! one of them is used when the one in use has left.
//!
//! The process remembers the newest history that it has seen. It never uses a server with an older one again,
//! even if no other answers, nor a connection to it that is still open.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::{StoreError, StoreErrorKind};

/// Time limit for opening a connection. Shorter than the engine waits for an acquire, so that a server that
/// drops packets is reported as unreachable, with nothing sent.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for one of several servers, so that the errors of all are reported within [`CONNECT_TIMEOUT`].
const EACH: Duration = CONNECT_TIMEOUT.saturating_sub(Duration::from_millis(200));

/// How long the others may still answer after one server said that it takes writes: the one that was promoted
/// last may be busy or far away.
const OTHERS: Duration = Duration::from_secs(1);

/// The error while other processes choose at the same time.
const CHANGES: &str = "the server in use is just being changed by other processes";

pub(crate) type Opening<C> = Pin<Box<dyn Future<Output = Result<C, StoreError>> + Send>>;

/// A connection to a server.
pub(crate) trait Alive: Send {
    /// Whether the server answers.
    fn is_alive(&mut self) -> impl Future<Output = bool> + Send;

    /// `None` if the server takes no writes. Asked only if there are several servers.
    fn history(&mut self) -> impl Future<Output = Result<Option<History>, StoreError>> + Send {
        ready(Ok(Some(History::default())))
    }

    /// Whether to call [`is_alive`](Self::is_alive) even if the connection was used a moment ago.
    fn is_due(&self) -> bool {
        false
    }

    /// Puts a server that stands by into use. `members` of its `view` have answered. `false` if another process
    /// was faster.
    fn claim(&mut self, view: i64, members: usize) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let _ = (view, members);
        ready(Ok(true))
    }
}

/// The history of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct History {
    /// Names the database: the same for all copies of it, but not for one that was restored or upgraded. Only histories
    /// of one cluster can be compared. `None` if it cannot be read: then only the addresses tell servers apart.
    pub(crate) cluster: Option<i64>,
    /// Larger for a newer history: the server that was promoted last has the largest.
    pub(crate) number: i64,
    /// The server takes writes, but the processes have agreed on another one, or on none yet.
    pub(crate) stands_by: bool,
    /// Servers with the same view see the same members.
    pub(crate) view: i64,
    /// The server's name in the view. Two addresses may lead to one server.
    pub(crate) member: i64,
}

impl<C: sqlx::Connection> Alive for C {
    async fn is_alive(&mut self) -> bool {
        self.ping().await.is_ok()
    }
}

/// The newest histories that this process has seen, by the servers' names and the cluster. All managers with
/// the same servers share them: when one has seen a promotion, the others must not go on with the old primary.
/// The cluster alone does not suffice, because a copy that was restored elsewhere has the same.
static NEWEST: Mutex<BTreeMap<Cluster, Arc<AtomicI64>>> = Mutex::new(BTreeMap::new());

/// The servers and their cluster, if it is known.
type Cluster = (Names, Option<i64>);

/// Hosts and ports.
type Names = Vec<Arc<str>>;

/// The history of the server of a connection, beside the newest one of its cluster.
#[derive(Debug, Default)]
pub(super) struct Age {
    history: i64,
    newest: Arc<AtomicI64>,
}

impl Age {
    /// Another server has been promoted since.
    pub(super) fn is_outdated(&self) -> bool {
        self.history < self.newest.load(Ordering::Relaxed)
    }
}

/// A connection to a server that takes writes.
pub(super) struct Connected<C> {
    pub(super) age: Age,
    /// Its index in the list.
    pub(super) server: usize,
    cluster: Option<i64>,
    stands_by: bool,
    view: i64,
    member: i64,
    pub(super) connection: C,
}

/// The servers of a store, by their index in the list.
#[derive(Debug)]
pub(super) struct Servers {
    /// The name of the store, for metrics.
    store: &'static str,
    names: Names,
    chosen: watch::Sender<usize>,
    /// The chosen server took writes when it was asked, and no connection to it has failed since.
    trusted: AtomicBool,
}

impl Servers {
    pub(super) fn new(store: &'static str, names: Vec<Arc<str>>) -> Self {
        Self {
            store,
            // The only server is never asked.
            trusted: AtomicBool::new(names.len() == 1),
            chosen: watch::Sender::new(0),
            names,
        }
    }

    pub(super) fn are_several(&self) -> bool {
        self.names.len() > 1
    }

    /// The server in use.
    pub(super) fn chosen(&self) -> usize {
        *self.chosen.borrow()
    }

    /// Waits until another server than `server` is in use.
    pub(super) async fn moved_from(&self, server: usize) {
        // No error: the sender is in `self`.
        let _ = self.chosen.subscribe().wait_for(|chosen| *chosen != server).await;
    }

    /// A connection to the chosen server failed, or that server takes no writes any more.
    pub(super) fn doubt(&self) {
        self.trusted.store(!self.are_several(), Ordering::Relaxed);
    }

    /// Opens a connection to the server that takes writes. `open` opens one to a server of the list.
    pub(super) async fn open<C: Alive>(
        &self,
        open: impl Fn(usize) -> Opening<C> + Sync,
    ) -> Result<Connected<C>, StoreError> {
        if !self.are_several() {
            return Ok(Connected {
                age: Age::default(),
                server: 0,
                cluster: None,
                stands_by: false,
                view: 0,
                member: 0,
                connection: open(0).await?,
            });
        }
        if self.trusted.load(Ordering::Relaxed) {
            let server = self.chosen();
            match timeout(EACH, self.ask(server, open(server))).await {
                Ok(Ok(found)) if !found.age.is_outdated() && !found.stands_by => return Ok(found),
                _ => self.doubt(),
            }
        }
        let mut found = self.search(&open).await?;
        if found.is_none() {
            // Another process has chosen.
            found = self.search(&open).await?;
        }
        let found = found.ok_or_else(|| StoreError::new(StoreErrorKind::Unreachable, CHANGES))?;
        let moves = |chosen: &mut usize| std::mem::replace(chosen, found.server) != found.server;
        if self.chosen.send_if_modified(moves) {
            tracing::warn!(
                server = &*self.names[found.server],
                "the locks are used on another server, which takes writes now"
            );
            events::note(self.store, Event::Moved);
        }
        self.trusted.store(true, Ordering::Relaxed);
        Ok(found)
    }

    /// `None` if the servers must be asked again.
    async fn search<C: Alive>(
        &self,
        open: impl Fn(usize) -> Opening<C> + Sync,
    ) -> Result<Option<Connected<C>>, StoreError> {
        let chosen = self.chosen();
        let mut asked: FuturesUnordered<_> = (0..self.names.len())
            .map(|server| {
                let asking = timeout(EACH, self.ask(server, open(server)));
                async move { (server, asking.await.unwrap_or_else(|_| Err(silent()))) }
            })
            .collect();
        let mut best: Option<Connected<C>> = None;
        let mut failed = Vec::new();
        let mut answered = BTreeSet::new();
        // The known clusters, each with a server that takes writes.
        let mut clusters = BTreeMap::new();
        let mut until = Instant::now() + CONNECT_TIMEOUT;
        while let Ok(Some((server, answer))) = timeout_at(until, asked.next()).await {
            match answer {
                // Goes on, because the newer server may need all of its time.
                Ok(found) if found.age.is_outdated() => failed.push((server, outdated())),
                Ok(found) => {
                    until = until.min(Instant::now() + OTHERS);
                    answered.insert((found.view, found.member));
                    if let Some(cluster) = found.cluster {
                        clusters.entry(cluster).or_insert(server);
                    }
                    // With the same history, the smaller is better.
                    let order = |found: &Connected<C>| {
                        let moves = found.server != chosen;
                        (-found.age.history, found.stands_by, moves, found.server)
                    };
                    if best.as_ref().is_none_or(|best| order(&found) < order(best)) {
                        best = Some(found);
                    }
                }
                Err(error) => failed.push((server, error)),
            }
        }
        if clusters.len() > 1 {
            let names = clusters.values().map(|server| &*self.names[*server]);
            return Err(unrelated(&names.collect::<Vec<_>>()));
        }
        match best {
            Some(best) if best.age.is_outdated() => failed.push((best.server, outdated())),
            Some(mut best) if best.stands_by => {
                let members = answered.iter().filter(|(view, _)| *view == best.view).count();
                let claiming = timeout(EACH, best.connection.claim(best.view, members));
                match claiming.await.unwrap_or_else(|_| Err(silent())) {
                    Ok(true) => return Ok(Some(best)),
                    Ok(false) => return Ok(None),
                    Err(error) => failed.push((best.server, error)),
                }
            }
            Some(best) => return Ok(Some(best)),
            None => {}
        }
        Err(self.none(failed))
    }

    /// Asks a server whether it takes writes, and remembers its history.
    async fn ask<C: Alive>(&self, server: usize, opening: Opening<C>) -> Result<Connected<C>, StoreError> {
        let mut connection = opening.await?;
        let Some(history) = connection.history().await? else {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                "it is a standby or a replica, or read-only",
            ));
        };
        let newest = self.newest(history.cluster);
        newest.fetch_max(history.number, Ordering::Relaxed);
        let age = Age {
            history: history.number,
            newest,
        };
        Ok(Connected {
            age,
            server,
            cluster: history.cluster,
            stands_by: history.stands_by,
            view: history.view,
            member: history.member,
            connection,
        })
    }

    /// The newest history of a cluster.
    fn newest(&self, cluster: Option<i64>) -> Arc<AtomicI64> {
        let mut names = self.names.clone();
        names.sort();
        let mut all = NEWEST.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry((names, cluster)).or_default())
    }

    /// The error if no server takes writes. If all refuse for the same reason, it is as final as with one
    /// server.
    fn none(&self, mut failed: Vec<(usize, StoreError)>) -> StoreError {
        failed.sort_by_key(|(server, _)| *server);
        let kind = failed.first().map(|(_, error)| error.kind());
        let kind = kind.filter(|kind| failed.iter().all(|(_, error)| error.kind() == *kind));
        let said = failed.iter().map(|(server, error)| {
            let (name, said) = (&self.names[*server], error.to_string());
            // A server that cannot be reached is named already.
            if said.contains(&**name) {
                said
            } else {
                format!("{name}: {said}")
            }
        });
        let said = said.collect::<Vec<_>>().join("; ");
        StoreError::new(
            kind.unwrap_or(StoreErrorKind::Unreachable),
            format!("none of the servers takes writes now: {said}"),
        )
    }
}

fn outdated() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        "it is an old primary: this process has used a server that was promoted later; make it a standby of that one, or \
         restart this process if a backup was restored on purpose",
    )
}

fn unrelated(names: &[&str]) -> StoreError {
    let message = format!(
        "{} take writes, and are no copies of each other: list the servers of one cluster only",
        names.join(" and ")
    );
    StoreError::new(StoreErrorKind::Unreachable, message)
}

fn silent() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("it did not accept a connection within {EACH:?}"),
    )
}

#[cfg(test)]
mod tests;
