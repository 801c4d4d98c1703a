//! The way to the ensemble: how a session is opened, and how our nodes are made.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;
#[cfg(feature = "sasl-digest-md5")]
use zookeeper_client::SaslOptions;
#[cfg(feature = "tls-rustls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acl, Acls, Client, CreateMode, CreateOptions, Error, MultiReadResult, Stat};

use crate::error;
use crate::place::Place;
use crate::url::Parts;

/// How long ZooKeeper keeps a session whose process is gone. Nothing depends on that. But a server that is silent for
/// two fifths of the time that it has granted is taken for gone. A ping waits behind the session's own write, and
/// a write that comes while another one is on its way to the disk waits for two commits.
const SESSION: Duration = Duration::from_secs(15);

/// A server that has not opened a session after so long is not waited for alone: the next one is asked, too. To
/// open a session is a commit.
pub(crate) const HEAD_START: Duration = Duration::from_millis(500);

/// A session that is being opened. It goes on although the call ends for which it was begun.
pub(crate) type Opening = Shared<BoxFuture<'static, Result<Client, StoreError>>>;

pub(crate) struct Way {
    pub(crate) place: Place,
    hosts: Vec<String>,
    user: Option<String>,
    acls: Option<Vec<Acl>>,
    session: Duration,
    #[cfg(feature = "tls-rustls")]
    tls: Option<TlsOptions>,
    #[cfg(feature = "sasl-digest-md5")]
    sasl: Option<SaslOptions>,
    /// The place of the server that is asked first.
    first: AtomicUsize,
    /// The clock's node, as it was found last. A server that was set up anew has another one.
    clock: Arc<Mutex<Option<Stat>>>,
}

impl Clone for Way {
    fn clone(&self) -> Self {
        Self {
            place: self.place.clone(),
            hosts: self.hosts.clone(),
            user: self.user.clone(),
            acls: self.acls.clone(),
            session: self.session,
            #[cfg(feature = "tls-rustls")]
            tls: self.tls.clone(),
            #[cfg(feature = "sasl-digest-md5")]
            sasl: self.sasl.clone(),
            first: anywhere(),
            clock: Arc::clone(&self.clock),
        }
    }
}

fn anywhere() -> AtomicUsize {
    let [.., random] = Uuid::new_v4().into_bytes();
    AtomicUsize::new(random.into())
}

impl Way {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            place: Place::new(parts.root),
            hosts: parts.hosts.split(',').map(str::to_owned).collect(),
            user: parts.user,
            acls: None,
            session: SESSION,
            #[cfg(feature = "tls-rustls")]
            tls: None,
            #[cfg(feature = "sasl-digest-md5")]
            sasl: None,
            first: anywhere(),
            clock: Arc::default(),
        }
    }

    pub(crate) fn with_session(mut self, length: Duration) -> Self {
        self.session = length;
        self
    }

    pub(crate) fn with_acls(mut self, acls: Vec<Acl>) -> Self {
        self.acls = Some(acls);
        self
    }

    #[cfg(feature = "tls-rustls")]
    pub(crate) fn with_tls(mut self, options: TlsOptions) -> Self {
        self.tls = Some(options);
        self
    }

    #[cfg(feature = "sasl-digest-md5")]
    pub(crate) fn with_sasl(mut self, options: SaslOptions) -> Self {
        self.sasl = Some(options);
        self
    }

    /// Begins to open a session on this runtime.
    pub(crate) fn open(self: &Arc<Self>) -> Opening {
        let way = Arc::clone(self);
        let task = AbortOnDropHandle::new(tokio::spawn(async move { way.connect().await }));
        let opened = async move {
            task.await.unwrap_or_else(|ended| {
                let message = format!("the session was not opened: {ended}");
                Err(StoreError::new(StoreErrorKind::Unreachable, message))
            })
        };
        opened.boxed().shared()
    }

    /// A new session with the first server that opens one, with our nodes made.
    pub(crate) async fn connect(&self) -> Result<Client, StoreError> {
        let first = self.first.load(Ordering::Relaxed);
        let count = self.hosts.len();
        let mut places = (first..first.wrapping_add(count)).map(|place| place % count);
        let mut attempts = FuturesUnordered::new();
        let mut failure = None;
        let racing = async {
            loop {
                match (places.next(), failure.take()) {
                    (Some(place), _) => attempts.push(self.connect_to(place)),
                    (None, Some(error)) if attempts.is_empty() => return Err(error),
                    (None, error) => failure = error,
                }
                match timeout(HEAD_START, attempts.next()).await {
                    Ok(Some(Ok((place, client)))) => {
                        // If this server fails, another one is asked first.
                        self.first.store(place + 1, Ordering::Relaxed);
                        return Ok(client);
                    }
                    Ok(Some(Err(error))) if error::is_of_session(&error) => failure = Some(error),
                    Ok(Some(Err(error))) => return Err(error),
                    Ok(None) | Err(_) => {}
                }
            }
        };
        let opened = timeout(self.session, racing).await.unwrap_or_else(|_| {
            let message = format!(
                "no ZooKeeper server opened a session within {:?}; are they running, and are the addresses right?",
                self.session
            );
            Err(StoreError::new(StoreErrorKind::Unreachable, message))
        });
        opened.map_err(|error| self.at(error))
    }

    async fn connect_to(&self, place: usize) -> Result<(usize, Client), StoreError> {
        let connector = Client::connector()
            .with_session_timeout(self.session)
            .with_fail_eagerly();
        let connector = match &self.user {
            Some(user) => connector.with_auth("digest", user.as_bytes()),
            None => connector,
        };
        #[cfg(feature = "sasl-digest-md5")]
        let connector = match &self.sasl {
            Some(sasl) => connector.with_sasl(sasl.clone()),
            None => connector,
        };
        let host = &self.hosts[place];
        #[cfg(feature = "tls-rustls")]
        let opened = match &self.tls {
            Some(tls) => connector.with_tls(tls.clone()).secure_connect(host).await,
            None => connector.connect(host).await,
        };
        #[cfg(not(feature = "tls-rustls"))]
        let opened = connector.connect(host).await;
        let client = opened.map_err(error::of_look)?;
        let clock = self.make_nodes(&client).await.map_err(error::of_look)?;
        let mut known = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_some_and(|known| !has_history(known, &clock)) {
            let message = "a server has not the nodes that were used before, nor did it make others later: it was set up anew, \
                           or its address is wrong; if all servers were set up anew, restart this program";
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        *known = Some(clock);
        drop(known);
        Ok((place, client))
    }

    /// Makes the nodes that all locks need, and finds that of the clock. The look comes first, because a write takes
    /// longer, and because it is one that servers before 3.6 do not know.
    async fn make_nodes(&self, client: &Client) -> Result<Stat, Error> {
        let nodes = [self.place.clock(), self.place.purges()];
        let look = async || {
            let mut look = client.new_multi_reader();
            for node in &nodes {
                look.add_get_data(node)?;
            }
            look.commit().await
        };
        let mut found = look().await?;
        if found
            .iter()
            .any(|found| !matches!(found, MultiReadResult::Data { .. }))
        {
            let options = self.options(CreateMode::Persistent);
            for node in &nodes {
                client.mkdir(node, &options).await?;
            }
            found = look().await?;
        }
        match found.into_iter().next() {
            Some(MultiReadResult::Data { stat, .. }) => Ok(stat),
            _ => Err(Error::NoNode),
        }
    }

    /// How nodes are made: for those whom the access list names, else for the user of the URL or of SASL alone, else for
    /// everyone.
    pub(crate) fn options(&self, mode: CreateMode) -> CreateOptions<'_> {
        let has_user = self.user.is_some();
        #[cfg(feature = "sasl-digest-md5")]
        let has_user = has_user || self.sasl.is_some();
        mode.with_acls(match &self.acls {
            Some(acls) => Acls::new(acls),
            None if has_user => Acls::creator_all(),
            None => Acls::anyone_all(),
        })
    }

    /// The error with the addresses of the ensemble. The client does not say which server it has found.
    pub(crate) fn at(&self, error: StoreError) -> StoreError {
        error.with_prefix(&format!("{}: ", self.hosts()))
    }

    /// The addresses of the servers.
    pub(crate) fn hosts(&self) -> String {
        self.hosts.join(",")
    }
}

/// Whether the server that has found the clock's node is one of those that `known` it: it is the same node, or was made
/// in its place after `known` was read. A server that was set up anew counts its writes from the first again.
fn has_history(known: &Stat, found: &Stat) -> bool {
    let is_same = (known.czxid, known.ctime) == (found.czxid, found.ctime);
    is_same || found.czxid > known.mzxid
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::tests::Place;
    use crate::url;

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_not_waited_for() {
        let Some(place) = Place::new() else { return };
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let both = format!("zookeeper://{},", silent.local_addr().unwrap());
        let way = Way::new(url::read(&place.url.replace("zookeeper://", &both)).unwrap());
        way.first.store(0, Ordering::Relaxed);
        let opened = timeout(SESSION * 2 / 5, way.connect()).await;
        opened.expect("before the silent one is taken for gone").unwrap();
        assert!(silent.accept().now_or_never().is_some(), "it was asked first");
    }

    #[tokio::test]
    async fn a_server_that_was_set_up_anew_is_not_used() {
        let Some(place) = Place::new() else { return };
        let way = Way::new(url::read(&place.url).unwrap());
        let client = way.connect().await.unwrap();
        let clock = way.clock.lock().unwrap().unwrap();
        // The count of a server that has forgotten the ensemble's writes.
        let of_more_writes = Stat {
            czxid: clock.czxid + (1 << 40),
            mzxid: clock.mzxid + (1 << 40),
            ..clock
        };
        *way.clock.lock().unwrap() = Some(of_more_writes);
        let refused = way.clone().connect().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Unreachable, "{refused}");
        assert!(refused.to_string().contains("set up anew"), "{refused}");

        *way.clock.lock().unwrap() = Some(clock);
        client.delete(&way.place.clock(), None).await.unwrap();
        way.connect().await.expect("the nodes were deleted by hand");
    }
}
