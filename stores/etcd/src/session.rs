//! The connection to one member of the cluster, opened when it is needed.
//!
//! One connection carries everything, because gRPC multiplexes. When it breaks, or something on it is not
//! answered, it is given up and the next member is tried. Nothing that may have been carried out is sent
//! again.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use dblock_core::store::{StoreError, StoreErrorKind};
use etcd_client::{Client, ConnectOptions, ResponseHeader};
use tokio::time::timeout;

use crate::{NAME, error, server};

/// Time limit for one member. With three members, and two of them down, the third one is found before an
/// acquire is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(700);

/// Time limit for logging in with a member that answers. It is a write of the cluster, and etcd makes the check
/// of a password slow on purpose.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the connection of a watch is tried, and how long it may take to answer: the member may be
/// stopped or cut off. A member closes a connection that is tried more often than every 5 seconds, or while
/// nothing is asked on it (etcd's `--grpc-keepalive-min-time`). Requests have limits of their own.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(6), Duration::from_secs(3));

/// The members of the cluster, and the open connection if there is one.
pub(crate) struct Members {
    pub(crate) addresses: Vec<String>,
    options: ConnectOptions,
    user: Option<(String, String)>,
    /// The log has been told of the version's fault.
    warned: AtomicBool,
    /// The id of the cluster, once a member has told it. Another one would grant what this one keeps.
    cluster: Arc<OnceLock<u64>>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    /// With the place of its member among the addresses.
    client: Option<(Client, usize)>,
    /// The member that is tried next.
    next: usize,
    /// Counts the connections, to tell the open one from those before it.
    number: u64,
    /// The member whose connection has ended, while there is no other one.
    left: Option<usize>,
    closed: bool,
}

impl Members {
    /// Members with these addresses. The options say how the connection is encrypted.
    pub(crate) fn new(addresses: Vec<String>, options: ConnectOptions) -> Self {
        Self {
            addresses,
            options,
            user: None,
            warned: AtomicBool::new(false),
            cluster: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// The same members, which know us as this user.
    pub(crate) fn with_user(&self, name: String, password: String) -> Self {
        let user = Some((name, password));
        Self { user, ..self.again() }
    }

    /// The same members, with these options.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn with(&self, options: ConnectOptions) -> Self {
        Self {
            options,
            ..self.again()
        }
    }

    /// The same members, with a connection of its own.
    pub(crate) fn again(&self) -> Self {
        Self {
            user: self.user.clone(),
            cluster: Arc::clone(&self.cluster),
            ..Self::new(self.addresses.clone(), self.options.clone())
        }
    }

    /// Takes no more work, and returns the connection if there is one. It is closed when those who use it are
    /// done.
    pub(crate) fn close(&self) -> Option<Client> {
        let mut open = self.open();
        open.closed = true;
        open.client.take().map(|(client, _)| client)
    }

    /// The open connection, or a new one to a member that has a leader.
    pub(crate) async fn take(&self) -> Result<Lent<'_>, StoreError> {
        let mut failures = Vec::new();
        for _ in &self.addresses {
            let member = {
                let mut open = self.open();
                if open.closed {
                    return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
                }
                if let Some((client, member)) = &open.client {
                    return Ok(self.lend(client.clone(), *member, open.number));
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
                    if let Some(left) = open.left.take() {
                        let [before, now] = [left, member].map(|member| &self.addresses[member]);
                        tracing::info!(
                            "etcd is asked at {now} now, after {before} has left a request without its answer"
                        );
                        let is_same = left == member;
                        events::note(NAME, if is_same { Event::Reconnected } else { Event::Moved });
                    }
                    if !open.closed {
                        open.client = Some((client.clone(), member));
                    }
                    return Ok(self.lend(client, member, open.number));
                }
                Err(error) if error.is_retryable() => failures.push(error),
                Err(error) => return Err(error),
            }
        }
        Err(none(failures))
    }

    async fn connect(&self, address: &str) -> Result<Client, StoreError> {
        let opened = self.open_checked(address).await;
        opened.map_err(|error| error::at(address, error))
    }

    async fn open_checked(&self, address: &str) -> Result<Client, StoreError> {
        let options = self.options.clone();
        let options = options
            .with_require_leader(true)
            .with_keep_alive(KEEP_ALIVE.0, KEEP_ALIVE.1)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_auto_token_refresh(true);
        let mut client = Client::connect([address], Some(options))
            .await
            .map_err(error::of_harmless)?;
        let mut status = in_time(CONNECT_TIMEOUT, client.status()).await;
        if let Some(user) = &self.user
            // A member may refuse to answer those who have not logged in.
            && !matches!(&status, Err(error) if error.is_retryable())
        {
            in_time(LOGIN_TIMEOUT, client.update_user(Some(user.clone()))).await?;
            if status.is_err() {
                status = in_time(CONNECT_TIMEOUT, client.status()).await;
            }
        }
        let status = status?;
        server::check(&status)?;
        if let Some(cluster) = status.header().map(ResponseHeader::cluster_id)
            && *self.cluster.get_or_init(|| cluster) != cluster
        {
            let message = "this member belongs to another cluster of etcd than the one that is in use: it was set up anew, or \
                           the address is wrong; if the whole cluster was made anew, restart this program";
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        if let Some(fault) = server::fault(&status)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!("{fault}");
        }
        Ok(client)
    }

    fn lend(&self, client: Client, member: usize, number: u64) -> Lent<'_> {
        Lent {
            client,
            member,
            number,
            answered: false,
            home: self,
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer of a member, if it comes in time.
async fn in_time<T>(
    limit: Duration,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, StoreError> {
    let Ok(answered) = timeout(limit, answer).await else {
        let message = format!(
            "this member of etcd did not answer within {limit:?}; is it running, and is the address right?"
        );
        return Err(StoreError::new(StoreErrorKind::Unreachable, message));
    };
    answered.map_err(error::of_harmless)
}

/// The error when no member can be used: with all reasons, and the last one's consequence.
fn none(mut failures: Vec<StoreError>) -> StoreError {
    let said: Vec<_> = failures.iter().map(ToString::to_string).collect();
    match failures.pop() {
        Some(only) if failures.is_empty() => only,
        last => StoreError::new(
            last.map_or(StoreErrorKind::Unreachable, |last| last.kind()),
            format!("no member of etcd can be used now: {}", said.join("; ")),
        ),
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
    member: usize,
    number: u64,
    answered: bool,
    home: &'a Members,
}

impl Lent<'_> {
    /// From now on nothing is known from its being dropped.
    pub(crate) fn may_be_dropped(&mut self) {
        self.answered = true;
    }

    /// All that was asked was answered. Errors name the member from here on.
    pub(crate) fn finish_all<T>(mut self, answers: Vec<Result<T, StoreError>>) -> Vec<Result<T, StoreError>> {
        let leave = [StoreErrorKind::Interrupted, StoreErrorKind::Unreachable];
        let mut errors = answers.iter().filter_map(|answer| answer.as_ref().err());
        self.answered = errors.all(|error| !leave.contains(&error.kind()));
        let address = &self.home.addresses[self.member];
        let named = |answer: Result<T, _>| answer.map_err(|error| error::at(address, error));
        answers.into_iter().map(named).collect()
    }

    /// As [`finish_all`](Self::finish_all), for one answer.
    pub(crate) fn finish<T>(self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        self.finish_all(vec![answer]).remove(0)
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut open = self.home.open();
        if !self.answered && open.number == self.number {
            open.client = None;
            open.left = Some(self.member);
        }
    }
}
