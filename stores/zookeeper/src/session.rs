//! The store's session with ZooKeeper, opened when it is needed.
//!
//! One session carries everything but wake-ups. The client keeps requests in order on it, sends each at most
//! once, and finds another server of the ensemble when one is gone. It is not waited for: a session that is
//! not connected, or that left a request without an answer, is given up, and the next request opens another.
//! Nothing is lost with a session, because no node is ephemeral.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use tokio::time::timeout;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, MultiReadResult, SessionState};

use crate::error;
use crate::held::Held;
use crate::listen::Asks;
use crate::place::Place;
use crate::url::Parts;

/// Time limit for opening a session. It is shorter than the engine waits for an acquire, so that an ensemble
/// that cannot be reached is known to be so, with nothing sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A server that is silent for this long is taken for gone, and another one is tried. Within the time for
/// opening a session two can be tried.
const SILENT: Duration = Duration::from_secs(1);

/// How long ZooKeeper keeps a session whose process is gone. Nothing depends on it.
const SESSION: Duration = Duration::from_secs(6);

/// The way to the ensemble, and the open session if there is one.
pub(crate) struct Ensemble {
    hosts: String,
    user: Option<String>,
    pub(crate) place: Place,
    pub(crate) held: Held,
    pub(crate) asks: Asks,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    client: Option<Client>,
    closed: bool,
}

impl Ensemble {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            hosts: parts.hosts,
            user: parts.user,
            place: Place::new(parts.root),
            held: Held::default(),
            asks: Asks::default(),
            open: Mutex::default(),
        }
    }

    /// The same ensemble, with a session of its own.
    pub(crate) fn again(&self) -> Self {
        Self {
            hosts: self.hosts.clone(),
            user: self.user.clone(),
            place: self.place.clone(),
            held: Held::default(),
            asks: Asks::default(),
            open: Mutex::default(),
        }
    }

    /// A session that is connected, as far as is known.
    pub(crate) async fn client(&self) -> Result<Client, StoreError> {
        {
            let mut open = self.open();
            if open.closed {
                return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
            }
            let connected = |client: &&Client| client.state() == SessionState::SyncConnected;
            if let Some(client) = open.client.as_ref().filter(connected) {
                return Ok(client.clone());
            }
            self.give_up(&mut open);
        }
        let client = self.connect().await?;
        let mut open = self.open();
        if !open.closed && open.client.replace(client.clone()).is_some() {
            // Another caller has opened a session meanwhile. The rows that follow it would keep it open.
            self.held.clear();
        }
        Ok(client)
    }

    /// A new session, with a server that can keep locks, and with our nodes made. Several callers may open
    /// one each at the same time: the last is kept, so that nobody waits for another one's attempt.
    pub(crate) async fn connect(&self) -> Result<Client, StoreError> {
        let opening = async {
            let mut connector = Client::connector()
                .with_session_timeout(SESSION)
                .with_connection_timeout(SILENT);
            if let Some(user) = &self.user {
                connector = connector.with_auth("digest", user.as_bytes());
            }
            let client = connector.connect(&self.hosts).await?;
            self.make_nodes(&client).await?;
            Ok(client)
        };
        let opened = match timeout(CONNECT_TIMEOUT, opening).await {
            Ok(opened) => opened.map_err(error::of_look),
            Err(_) => Err(StoreError::new(
                StoreErrorKind::Unreachable,
                format!(
                    "no ZooKeeper server opened a session within {CONNECT_TIMEOUT:?}; are they running, and are the \
                     addresses right?"
                ),
            )),
        };
        opened.map_err(|error| self.at(error))
    }

    /// The error with the addresses of the ensemble. The client does not say which server it has found.
    pub(crate) fn at(&self, error: StoreError) -> StoreError {
        error.with_prefix(&format!("{}: ", self.hosts))
    }

    /// Makes the nodes that all locks need. The look comes first, because a write takes longer, and because
    /// it is one that servers before 3.6 do not know.
    async fn make_nodes(&self, client: &Client) -> Result<(), Error> {
        let nodes = [self.place.clock(), self.place.purges()];
        let mut look = client.new_multi_reader();
        for node in &nodes {
            look.add_get_data(node)?;
        }
        let options = self.options(CreateMode::Persistent);
        for (node, found) in nodes.iter().zip(look.commit().await?) {
            if !matches!(found, MultiReadResult::Data { .. }) {
                client.mkdir(node, &options).await?;
            }
        }
        Ok(())
    }

    /// How nodes are made: for everyone, or for the user of the URL alone.
    pub(crate) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(match self.user {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        })
    }

    /// The error of a request, with the addresses of the ensemble. Gives the session up if it may be of no use any
    /// more after it.
    pub(crate) fn failed(&self, client: &Client, error: StoreError) -> StoreError {
        let mut open = self.open();
        let same = |open: &Client| open.session_id() == client.session_id();
        if error::is_of_session(&error) && open.client.as_ref().is_some_and(same) {
            self.give_up(&mut open);
        }
        self.at(error)
    }

    /// Takes no more work, and ends the session when those who use it are done.
    pub(crate) fn close(&self) {
        let mut open = self.open();
        self.give_up(&mut open);
        open.closed = true;
    }

    /// Uses this session for nothing new. The rows that are kept were read through it, and would keep it
    /// open.
    fn give_up(&self, open: &mut Open) {
        open.client = None;
        self.held.clear();
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ensemble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ensemble")
            .field("hosts", &self.hosts)
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
            let error = Ensemble::new(parts).client().await.unwrap_err();
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
}
