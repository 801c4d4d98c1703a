//! The store's session with ZooKeeper, opened when it is needed.
//!
//! One session carries everything but wake-ups. The client keeps requests in order on it, and sends each at most
//! once. It is not waited for: a session that is not connected is given up, and the next request opens another.
//! Nothing is lost with a session, because no node is ephemeral.
//!
//! A call that is dropped before it is answered does not tell whether the server hangs, or whether its disk is slow.
//! So another session is opened, and takes over as soon as it is open. On a slow disk that takes long, too, and
//! meanwhile the former one goes on.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dblock_core::store::events::{self, Event};
use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::FutureExt as _;
use tokio::time::timeout;
use zookeeper_client::{Client, CreateMode, CreateOptions, SessionState};

use crate::NAME;
use crate::error;
use crate::held::Held;
use crate::listen::Asks;
use crate::place::Place;
use crate::way::{HEAD_START, Opening, Way};

/// The way to the ensemble, and the session if there is one.
pub(crate) struct Ensemble {
    pub(crate) way: Arc<Way>,
    pub(crate) place: Place,
    pub(crate) held: Held,
    pub(crate) asks: Asks,
    session: Mutex<Session>,
    /// Those of the managers that were made from the store with this one.
    of_managers: Mutex<Vec<Weak<Ensemble>>>,
}

#[derive(Default)]
enum Session {
    #[default]
    None,
    Opening(Opening),
    Open(Client),
    /// It has left a call without an answer. Another one is to take over.
    Suspect(Client, Opening),
    /// There will be none.
    Closed,
}

impl Ensemble {
    pub(crate) fn new(way: Arc<Way>) -> Self {
        Self {
            place: way.place.clone(),
            way,
            held: Held::default(),
            asks: Asks::default(),
            session: Mutex::default(),
            of_managers: Mutex::default(),
        }
    }

    /// The same ensemble for a manager, with a session of its own.
    pub(crate) fn for_manager(&self) -> Arc<Self> {
        let ensemble = Arc::new(Self::new(Arc::clone(&self.way)));
        let mut all = self.of_managers.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|manager| manager.strong_count() > 0);
        all.push(Arc::downgrade(&ensemble));
        ensemble
    }

    /// An ensemble of a manager that has a session now. That is on the manager's runtime, which nobody else's
    /// work holds up.
    pub(crate) fn of_manager(&self) -> Result<(Arc<Self>, Client), StoreError> {
        let all = self.of_managers.lock().unwrap_or_else(PoisonError::into_inner);
        let mut managers = all.iter().filter_map(Weak::upgrade).peekable();
        if managers.peek().is_none() {
            let message = "no manager has this store: build one from it, or from a clone of it";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
        let with_session = managers.find_map(|ensemble| {
            let client = ensemble.session().connected()?;
            Some((ensemble, client))
        });
        with_session.ok_or_else(|| {
            let message = "the manager has no session now; it opens one with its next request";
            self.way.at(StoreError::new(StoreErrorKind::Unreachable, message))
        })
    }

    /// A session that is connected, as far as is known. If there is none, all wait for the same one.
    pub(crate) async fn client(&self) -> Result<Client, StoreError> {
        let (former, opening) = {
            let mut session = self.session();
            if session.opening().is_some_and(is_over) {
                // A caller that asks now is not told what came of an attempt before.
                *session = match std::mem::take(&mut *session) {
                    Session::Suspect(client, _) => Session::Suspect(client, self.way.open()),
                    _ => Session::None,
                };
            }
            let former = session.connected();
            match (&*session, former) {
                (Session::Closed, _) => {
                    return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
                }
                (Session::Open(_), Some(client)) => return Ok(client),
                (Session::Opening(opening) | Session::Suspect(_, opening), former) => {
                    (former, opening.clone())
                }
                (Session::None | Session::Open(_), _) => {
                    if matches!(&*session, Session::Open(_)) {
                        self.lost();
                    }
                    // The rows that are kept were read through the former session, and would keep it open.
                    self.held.clear();
                    let opening = self.way.open();
                    *session = Session::Opening(opening.clone());
                    (None, opening)
                }
            }
        };
        let opened = match &former {
            None => opening.clone().await,
            Some(former) => match timeout(HEAD_START, opening.clone()).await {
                Ok(opened) => opened.or_else(|_| Ok(former.clone())),
                Err(_) => return Ok(former.clone()),
            },
        };
        let mut session = self.session();
        if session.opening().is_some_and(|own| own.ptr_eq(&opening)) {
            let is_another = |client: &Client| {
                former
                    .as_ref()
                    .is_none_or(|former| former.session_id() != client.session_id())
            };
            if opened.as_ref().is_ok_and(is_another) {
                tracing::info!(hosts = self.way.hosts(), "a session with ZooKeeper has begun");
                events::note(NAME, Event::SessionBegan);
            }
            self.held.clear();
            *session = opened.clone().map_or(Session::None, Session::Open);
        }
        opened
    }

    /// As [`Way::options`].
    pub(crate) fn options(&self, mode: CreateMode) -> CreateOptions<'_> {
        self.way.options(mode)
    }

    /// The error of a request, with the addresses of the ensemble. Gives the session up if it may be of no use any
    /// more after it.
    pub(crate) fn failed(&self, client: &Client, error: StoreError) -> StoreError {
        if error::is_of_session(&error) {
            self.give_up(client);
        }
        self.way.at(error)
    }

    /// The session has left a call without an answer.
    pub(crate) fn suspect(&self, client: &Client) {
        let mut session = self.session();
        if matches!(&*session, Session::Open(open) if open.session_id() == client.session_id()) {
            *session = Session::Suspect(client.clone(), self.way.open());
            drop(session);
            self.lost();
        }
    }

    /// Uses this session for nothing new.
    fn give_up(&self, client: &Client) {
        let mut session = self.session();
        let same = |open: &Client| open.session_id() == client.session_id();
        let (next, is_lost) = match std::mem::take(&mut *session) {
            Session::Open(open) if same(&open) => (Session::None, true),
            Session::Suspect(open, opening) if same(&open) => (Session::Opening(opening), false),
            other => {
                *session = other;
                return;
            }
        };
        *session = next;
        drop(session);
        self.held.clear();
        if is_lost {
            self.lost();
        }
    }

    fn lost(&self) {
        tracing::warn!(
            hosts = self.way.hosts(),
            "a session with ZooKeeper is used no more"
        );
        events::note(NAME, Event::SessionLost);
    }

    /// Takes no more work, and ends the session when those who use it are done.
    pub(crate) fn close(&self) {
        *self.session() = Session::Closed;
        self.held.clear();
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether an attempt has ended without a session that can be used now.
fn is_over(opening: &Opening) -> bool {
    let opened = opening.clone().now_or_never();
    opened.is_some_and(|opened| !opened.is_ok_and(|client| client.state() == SessionState::SyncConnected))
}

impl Session {
    fn opening(&self) -> Option<&Opening> {
        match self {
            Self::Opening(opening) | Self::Suspect(_, opening) => Some(opening),
            _ => None,
        }
    }

    fn connected(&self) -> Option<Client> {
        match self {
            Self::Open(client) | Self::Suspect(client, _)
                if client.state() == SessionState::SyncConnected =>
            {
                Some(client.clone())
            }
            _ => None,
        }
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_error_names_the_servers_that_cannot_be_used() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = listener.local_addr().unwrap().to_string();
        for address in ["127.0.0.1:1", &silent] {
            let parts = crate::url::read(&format!("zookeeper://u:hush@{address}")).unwrap();
            let error = Ensemble::new(Arc::new(Way::new(parts)))
                .client()
                .await
                .unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
            let said = error.to_string();
            assert!(
                said.starts_with(&format!("{address}: no ZooKeeper server "))
                    && said.contains("are they running"),
                "{said}"
            );
            assert!(!said.contains("hush") && said.lines().count() == 1, "{said}");
        }
    }

    #[tokio::test]
    async fn an_attempt_that_has_failed_before_is_no_answer() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let parts = crate::url::read(&format!("zookeeper://{}", listener.local_addr().unwrap())).unwrap();
        let ensemble = Ensemble::new(Arc::new(Way::new(parts)));
        // Nobody waits for it until it has failed.
        assert!(ensemble.client().now_or_never().is_none());
        drop(listener.accept().await.unwrap());
        let first = ensemble.session().opening().unwrap().clone();
        first.await.unwrap_err();

        let again = ensemble.client();
        let asked = tokio::select! {
            asked = listener.accept() => asked.is_ok(),
            _ = again => false,
        };
        assert!(asked, "another attempt is begun");
    }
}
