//! The connection to one member of the cluster, opened when it is needed.
//!
//! One connection carries everything, because gRPC multiplexes. When it breaks, or something on it is not
//! answered, it is given up and the next member is tried. Nothing that may have been carried out is sent
//! again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use etcd_client::{Client, ConnectOptions};
use tokio::time::timeout;

use crate::{error, server};

/// Time limit for one member. With three members, and two of them down, the third one is found before an
/// acquire is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// How often the connection of a watch is tried, and how long it may take to answer: the member may be
/// stopped or cut off. A member closes a connection that is tried more often than every 5 seconds, or while
/// nothing is asked on it (etcd's `--grpc-keepalive-min-time`). Requests have limits of their own.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));

/// The members of the cluster, and the open connection if there is one.
pub(crate) struct Members {
    addresses: Vec<String>,
    user: Option<(String, String)>,
    /// The log has been told of the version's fault.
    warned: AtomicBool,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    client: Option<Client>,
    /// The member that is tried next.
    next: usize,
    /// Counts the connections, to tell the open one from those before it.
    number: u64,
    closed: bool,
}

impl Members {
    pub(crate) fn new(addresses: Vec<String>, user: Option<(String, String)>) -> Self {
        Self {
            addresses,
            user,
            warned: AtomicBool::new(false),
            open: Mutex::default(),
        }
    }

    /// The same members, which know us as this user.
    pub(crate) fn with_user(&self, user: String, password: String) -> Self {
        Self::new(self.addresses.clone(), Some((user, password)))
    }

    /// The same members, with a connection of its own.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.addresses.clone(), self.user.clone())
    }

    /// Takes no more work and closes the connection when those who use it are done.
    pub(crate) fn close(&self) {
        let mut open = self.open();
        open.client = None;
        open.closed = true;
    }

    /// The open connection, or a new one to a member that has a leader.
    pub(crate) async fn take(&self) -> Result<Lent<'_>, StoreError> {
        let mut failure = None;
        for _ in &self.addresses {
            let member = {
                let mut open = self.open();
                if open.closed {
                    return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
                }
                if let Some(client) = &open.client {
                    return Ok(self.lend(client.clone(), open.number));
                }
                // Before it is asked: this request may be given up meanwhile, and the next one must go on
                // behind this member.
                let member = open.next % self.addresses.len();
                open.next = member + 1;
                member
            };
            match self.connect(&self.addresses[member]).await {
                Ok(client) => {
                    let mut open = self.open();
                    open.number += 1;
                    if !open.closed {
                        open.client = Some(client.clone());
                    }
                    return Ok(self.lend(client, open.number));
                }
                Err(error) if error.is_retryable() => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            StoreError::new(
                StoreErrorKind::Unsupported,
                "no address of an etcd member was given",
            )
        }))
    }

    async fn connect(&self, address: &str) -> Result<Client, StoreError> {
        let mut options = ConnectOptions::new()
            .with_require_leader(true)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_connect_timeout(CONNECT_TIMEOUT);
        if let Some((user, password)) = &self.user {
            options = options.with_user(user, password).with_auto_token_refresh(true);
        }
        let opened = async {
            let mut client = Client::connect([address], Some(options)).await?;
            let status = client.status().await?;
            Ok((client, status))
        };
        let Ok(opened) = timeout(CONNECT_TIMEOUT, opened).await else {
            let message = format!("a member of etcd did not answer within {CONNECT_TIMEOUT:?}");
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        };
        let (client, status) = opened.map_err(error::of_harmless)?;
        server::check(&status)?;
        if let Some(fault) = server::fault(&status)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{fault}");
        }
        Ok(client)
    }

    fn lend(&self, client: Client, number: u64) -> Lent<'_> {
        Lent {
            client,
            number,
            answered: false,
            home: self,
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Members")
            .field("count", &self.addresses.len())
            .finish_non_exhaustive()
    }
}

/// The connection in use. If it is dropped before all was answered, nobody uses it any more.
pub(crate) struct Lent<'a> {
    pub(crate) client: Client,
    number: u64,
    answered: bool,
    home: &'a Members,
}

impl Lent<'_> {
    /// From now on nothing is known from its being dropped.
    pub(crate) fn may_be_dropped(&mut self) {
        self.answered = true;
    }

    /// All that was asked was answered, with errors of these.
    pub(crate) fn finish<'e>(mut self, errors: impl IntoIterator<Item = &'e StoreError>) {
        self.answered = errors.into_iter().all(|error| {
            !matches!(
                error.kind(),
                StoreErrorKind::Interrupted | StoreErrorKind::Unreachable
            )
        });
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut open = self.home.open();
        if !self.answered && open.number == self.number {
            open.client = None;
        }
    }
}
