//! Several servers of which one takes writes: finds it, and finds it again after a fail-over.
//!
//! The chosen server is used without being asked until a connection to it fails. Then all are asked side by
//! side. Two may say that they take writes, when an old primary has come back beside the new one: the newer
//! history wins. Where histories cannot be told apart, as in a Galera cluster, the chosen server stays
//! chosen, and else the first of the list is.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::error::{StoreError, StoreErrorKind};

/// Time limit for opening a connection. It is shorter than the engine waits for an acquire, so that a server
/// that drops packets is known to be unreachable, with nothing sent.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit for one of several servers: the errors of the others are to be reported within
/// [`CONNECT_TIMEOUT`].
const EACH: Duration = CONNECT_TIMEOUT.saturating_sub(Duration::from_millis(200));

/// How long the others may still answer when one server has been found that takes writes.
const OTHERS: Duration = Duration::from_millis(200);

pub(crate) type Opening<C> = Pin<Box<dyn Future<Output = Result<C, StoreError>> + Send>>;

/// A connection to a server.
pub(crate) trait Alive: Send {
    /// Whether the server answers.
    fn is_alive(&mut self) -> impl Future<Output = bool> + Send;

    /// `None` when the server takes no writes, else a number that is larger when its history is newer: that
    /// of the server that was promoted last. Asked only where there are several servers.
    fn history(&mut self) -> impl Future<Output = Result<Option<i64>, StoreError>> + Send {
        ready(Ok(Some(0)))
    }
}

impl<C: sqlx::Connection> Alive for C {
    async fn is_alive(&mut self) -> bool {
        self.ping().await.is_ok()
    }
}

/// The servers of a store, by their place in the list.
#[derive(Debug)]
pub(super) struct Servers {
    names: Vec<Arc<str>>,
    chosen: watch::Sender<usize>,
    /// The chosen server took writes when it was asked, and no connection to it has failed since.
    trusted: AtomicBool,
}

/// A connection to a server that takes writes.
struct Found<C> {
    history: i64,
    server: usize,
    connection: C,
}

impl Servers {
    pub(super) fn new(names: Vec<Arc<str>>) -> Self {
        Self {
            // One alone is never asked: there is no other.
            trusted: AtomicBool::new(names.len() == 1),
            chosen: watch::Sender::new(0),
            names,
        }
    }

    /// The server that is used.
    pub(super) fn chosen(&self) -> usize {
        *self.chosen.borrow()
    }

    /// Whether a search is not needed.
    pub(super) fn is_trusted(&self) -> bool {
        self.trusted.load(Ordering::Relaxed)
    }

    /// Waits until another server than `server` is used.
    pub(super) async fn moved_from(&self, server: usize) {
        // No error: the sender is in `self`.
        let _ = self.chosen.subscribe().wait_for(|chosen| *chosen != server).await;
    }

    /// A connection to the chosen server failed, or that server takes no writes any more.
    pub(super) fn doubt(&self) {
        self.trusted.store(self.names.len() == 1, Ordering::Relaxed);
    }

    /// Opens a connection to the server that takes writes, and says which one that is. `open` opens one to a
    /// server of the list.
    pub(super) async fn open<C: Alive>(
        &self,
        open: impl Fn(usize) -> Opening<C> + Sync,
    ) -> Result<(usize, C), StoreError> {
        if self.names.len() == 1 {
            return Ok((0, open(0).await?));
        }
        if self.is_trusted() {
            let server = self.chosen();
            if let Ok(Ok(connection)) = timeout(EACH, open(server)).await {
                return Ok((server, connection));
            }
            self.doubt();
        }
        let found = self.search(open).await?;
        let moves = |chosen: &mut usize| std::mem::replace(chosen, found.server) != found.server;
        if self.chosen.send_if_modified(moves) {
            tracing::warn!(
                server = &*self.names[found.server],
                "the locks are used on another server, which takes writes now"
            );
        }
        self.trusted.store(true, Ordering::Relaxed);
        Ok((found.server, found.connection))
    }

    async fn search<C: Alive>(
        &self,
        open: impl Fn(usize) -> Opening<C> + Sync,
    ) -> Result<Found<C>, StoreError> {
        let chosen = self.chosen();
        let mut asked: FuturesUnordered<_> = (0..self.names.len())
            .map(|server| {
                let opening = open(server);
                async move {
                    (
                        server,
                        timeout(EACH, ask(opening))
                            .await
                            .unwrap_or_else(|_| Err(silent())),
                    )
                }
            })
            .collect();
        let mut best: Option<Found<C>> = None;
        let mut failed = Vec::new();
        let mut until = Instant::now() + CONNECT_TIMEOUT;
        while let Ok(Some((server, answer))) = timeout_at(until, asked.next()).await {
            match answer {
                Ok((history, connection)) => {
                    until = until.min(Instant::now() + OTHERS);
                    let found = Found {
                        history,
                        server,
                        connection,
                    };
                    // Smaller is better where the histories are the same.
                    let order = |found: &Found<C>| (-found.history, found.server != chosen, found.server);
                    if best.as_ref().is_none_or(|best| order(&found) < order(best)) {
                        best = Some(found);
                    }
                }
                Err(error) => failed.push((server, error)),
            }
        }
        best.ok_or_else(|| self.none(failed))
    }

    /// No server takes writes. If all refuse for the same reason, trying again helps as little as with one
    /// server.
    fn none(&self, mut failed: Vec<(usize, StoreError)>) -> StoreError {
        failed.sort_by_key(|(server, _)| *server);
        let kind = failed.first().map(|(_, error)| error.kind());
        let kind = kind.filter(|kind| failed.iter().all(|(_, error)| error.kind() == *kind));
        let said = failed
            .iter()
            .map(|(server, error)| format!("{}: {error}", self.names[*server]));
        let said = said.collect::<Vec<_>>().join("; ");
        StoreError::new(
            kind.unwrap_or(StoreErrorKind::Unreachable),
            format!("none of the servers takes writes now: {said}"),
        )
    }
}

async fn ask<C: Alive>(opening: Opening<C>) -> Result<(i64, C), StoreError> {
    let mut connection = opening.await?;
    match connection.history().await? {
        Some(history) => Ok((history, connection)),
        None => Err(StoreError::new(
            StoreErrorKind::Unreachable,
            "it is a standby or a replica, or read-only",
        )),
    }
}

fn silent() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("it did not accept a connection within {EACH:?}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server: how long it takes to answer, and its history; `None` for a standby.
    type Server = (u64, Result<Option<i64>, StoreErrorKind>);

    #[derive(Debug)]
    struct Connection(Option<i64>);

    impl Alive for Connection {
        async fn is_alive(&mut self) -> bool {
            true
        }

        async fn history(&mut self) -> Result<Option<i64>, StoreError> {
            Ok(self.0)
        }
    }

    fn names(count: usize) -> Servers {
        Servers::new((1..=count).map(|n| format!("db{n}").into()).collect())
    }

    /// The server of a new connection.
    async fn opened(servers: &Servers, all: &[Server]) -> Result<usize, StoreError> {
        let opening = |server: usize| -> Opening<Connection> {
            let (takes, answer) = all[server];
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(takes)).await;
                answer.map(Connection).map_err(|kind| StoreError::new(kind, "no"))
            })
        };
        servers.open(opening).await.map(|(server, _)| server)
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_history_wins_and_then_the_chosen_server_does() {
        let servers = names(3);
        let away = (0, Err(StoreErrorKind::Unreachable));
        // The newest answers last.
        let all = [(0, Ok(Some(1))), (1, Ok(None)), (150, Ok(Some(2)))];
        assert_eq!(opened(&servers, &all).await.unwrap(), 2);
        // It is not asked again as long as nothing fails, nor are the others.
        let all = [(0, Ok(Some(3))), (0, Ok(Some(3))), (0, Ok(None))];
        assert_eq!(opened(&servers, &all).await.unwrap(), 2);
        servers.doubt();
        assert_eq!(opened(&servers, &all).await.unwrap(), 0);
        servers.doubt();
        let same = [(9, Ok(Some(3))), (0, Ok(Some(3))), (0, Ok(Some(3)))];
        assert_eq!(opened(&servers, &[away, same[1], same[2]]).await.unwrap(), 1);
        servers.doubt();
        assert_eq!(opened(&servers, &same).await.unwrap(), 1, "it stays");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_server_keeps_nobody_waiting() {
        let since = Instant::now();
        let all = [(60_000, Ok(Some(1))), (0, Ok(Some(1)))];
        assert_eq!(opened(&names(2), &all).await.unwrap(), 1);
        assert_eq!(since.elapsed(), OTHERS);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_primary_each_server_is_named() {
        let refused = (0, Err(StoreErrorKind::Refused));
        let error = opened(&names(2), &[refused, (60_000, Ok(None))])
            .await
            .unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable);
        let said =
            "none of the servers takes writes now: db1: no; db2: it did not accept a connection within 1.8s";
        assert_eq!(error.to_string(), said);
        let error = opened(&names(2), &[refused, refused]).await.unwrap_err();
        assert_eq!(
            error.kind(),
            StoreErrorKind::Refused,
            "trying again does not help"
        );
    }
}
