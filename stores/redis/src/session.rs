//! The store's connection, opened when it is needed.
//!
//! One connection carries everything, because the server carries out one request at a time anyway. The
//! `redis` crate keeps requests and answers in order on it. If the caller of a request has gone, only the
//! answer is lost. That crate neither reconnects nor retries for us, because nothing may send an acquire
//! twice.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dblock_core::store::events::{self, Event};
use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::future::select_ok;
use redis::aio::{MultiplexedConnection, PubSub};
use redis::{AsyncConnectionConfig, RedisResult, Value};
use tokio::time::{Instant, timeout};

use crate::acknowledge::Acknowledgement;
use crate::call::{self, Call};
use crate::login::{Clients, Target};
use crate::sentinel::Sentinels;
use crate::{NAME, error, server};

/// Time limit for opening a connection. It is shorter than the engine waits for an acquire. So a server that
/// drops packets is reported as unreachable, which says that nothing was sent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection that was unused for this long is pinged first: a firewall may have dropped it, or the server
/// restarted.
const IDLE: Duration = Duration::from_secs(1);

/// Time limit of the ping: an extend must have time left for a new connection, even with the shortest ttl.
const SIGN_OF_LIFE: Duration = Duration::from_millis(500);

/// The way to the server, and the open connection if there is one.
pub(crate) struct Server {
    way: Way,
    /// It is one of a cluster, and no other server will do.
    in_cluster: bool,
    acknowledgement: Option<Acknowledgement>,
    open: Mutex<Open>,
}

/// How the server is found.
pub(crate) enum Way {
    Server(Target),
    Sentinels(Arc<Sentinels>),
}

/// The answer to a call, and the error if its writes do not count because too few servers have them.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) open: Option<StoreError>,
}

#[derive(Default)]
struct Open {
    connection: Option<Kept>,
    /// Counts the connections, to tell the open one from those before it.
    number: u64,
    /// A connection has ended, and none was opened since.
    has_ended: bool,
    closed: bool,
}

struct Kept {
    connection: MultiplexedConnection,
    used: Instant,
    leads_to: LeadsTo,
}

/// The address of the primary that Sentinels have named, where they have.
type LeadsTo = Option<Arc<str>>;

impl Server {
    pub(crate) fn new(way: Way, in_cluster: bool) -> Self {
        Self {
            way,
            in_cluster,
            acknowledgement: None,
            open: Mutex::default(),
        }
    }

    /// The same server, with a connection of its own.
    pub(crate) fn again(&self) -> Self {
        let way = match &self.way {
            Way::Server(target) => Way::Server(target.clone()),
            Way::Sentinels(sentinels) => Way::Sentinels(Arc::new(sentinels.again())),
        };
        Self::new(way, self.in_cluster).acknowledged_by(self.acknowledgement)
    }

    /// The servers that must have its writes from now on.
    pub(crate) fn acknowledged_by(mut self, acknowledgement: Option<Acknowledgement>) -> Self {
        self.acknowledgement = acknowledgement;
        self
    }

    /// The same, by clients that are made in this way.
    pub(crate) fn made_by(self, clients: Clients) -> Self {
        let way = match self.way {
            Way::Server(target) => Way::Server(target.made_by(clients)),
            Way::Sentinels(sentinels) => Way::Sentinels(Arc::new(sentinels.again().made_by(&clients))),
        };
        Self { way, ..self }
    }

    pub(crate) fn database(&self) -> i64 {
        match &self.way {
            Way::Server(target) => target.database(),
            Way::Sentinels(sentinels) => sentinels.database(),
        }
    }

    /// Carries out a call once, and waits for the servers that must have its writes.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Result<Answer, StoreError> {
        let mut lent = self.take().await?;
        let answer = call.send(&mut lent.connection).await;
        lent.acknowledge(answer, call).await
    }

    /// As [`run`](Self::run), on a server of a cluster to which a slot is being moved.
    pub(crate) async fn run_asking(&self, call: &Call<'_>) -> Result<Answer, StoreError> {
        let mut lent = self.take().await?;
        let answer = call.send_asking(&mut lent.connection).await;
        lent.acknowledge(answer, call).await
    }

    /// Sends one command.
    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, command: &redis::Cmd) -> Result<T, StoreError> {
        let mut lent = self.take().await?;
        let answer = command.query_async(&mut lent.connection).await;
        lent.finish(answer)
    }

    /// As [`ask`](Self::ask), on a server of a cluster to which a slot is being moved.
    pub(crate) async fn ask_asking<T: redis::FromRedisValue>(
        &self,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let mut lent = self.take().await?;
        let answer = call::asking(command.clone(), &mut lent.connection).await;
        lent.finish(answer)
    }

    /// A connection for listening alone, and the address that it leads to.
    pub(crate) async fn listener(&self) -> Result<(PubSub, String), StoreError> {
        let target = match &self.way {
            Way::Server(target) => target.clone(),
            Way::Sentinels(sentinels) => sentinels.at(&sentinels.current().await?)?,
        };
        let opened = async {
            let client = target.client().await?;
            in_time(client.get_async_pubsub()).await
        };
        match opened.await {
            Ok(listener) => Ok((listener, target.to_string())),
            Err(error) => Err(error::at(target, error)),
        }
    }

    /// The server, as errors name it.
    fn name(&self) -> String {
        match &self.way {
            Way::Server(target) => target.to_string(),
            Way::Sentinels(sentinels) => sentinels.primary(),
        }
    }

    /// Takes no more work and closes the connection when those who use it are done.
    pub(crate) fn close(&self) {
        let mut open = self.open();
        open.connection = None;
        open.closed = true;
    }

    async fn take(&self) -> Result<Lent<'_>, StoreError> {
        let found = {
            let mut open = self.open();
            if open.closed {
                return Err(StoreError::new(StoreErrorKind::Other, "the lock store is closed"));
            }
            let number = open.number;
            open.connection.as_mut().map(|kept| {
                let idle = std::mem::replace(&mut kept.used, Instant::now()).elapsed();
                let lent = self.lend(kept.connection.clone(), number);
                (lent, idle, kept.leads_to.clone())
            })
        };
        // One that is not alive is forgotten when it is dropped.
        if let Some((mut lent, idle, leads_to)) = found
            && (idle < IDLE || lent.is_alive().await)
            && self.still_leads_to(&leads_to).await
        {
            return Ok(lent);
        }
        let before = self.name();
        let (connection, leads_to) = self.connect().await?;
        let name = self.name();
        let mut open = self.open();
        open.number += 1;
        // That there is another primary was told.
        if std::mem::take(&mut open.has_ended) && name == before {
            tracing::info!("{name}: the Redis server is connected again");
            events::note(NAME, Event::Reconnected);
        }
        if !open.closed {
            open.connection = Some(Kept {
                connection: connection.clone(),
                used: Instant::now(),
                leads_to,
            });
        }
        Ok(self.lend(connection, open.number))
    }

    /// A new connection to a server that can keep locks. Several callers may open one each at the same time:
    /// the last is kept, so that nobody waits for another one's attempt.
    async fn connect(&self) -> Result<(MultiplexedConnection, LeadsTo), StoreError> {
        let sentinels = match &self.way {
            Way::Server(target) => return Ok((self.open_one(target).await?, None)),
            Way::Sentinels(sentinels) => sentinels,
        };
        let named = sentinels.named().await?;
        let tried = named.into_iter().map(|address| {
            Box::pin(async {
                let connection = self.open_one(&sentinels.at(&address)?).await?;
                Ok::<_, StoreError>((connection, address))
            })
        });
        // Where they do not agree, the first that is a primary.
        let ((connection, address), _) = select_ok(tried).await?;
        sentinels.note(&address);
        Ok((connection, Some(address.into())))
    }

    /// A new connection to this server, if it can keep locks.
    async fn open_one(&self, target: &Target) -> Result<MultiplexedConnection, StoreError> {
        let opened = self.open_checked(target).await;
        opened.map_err(|error| error::at(target, error))
    }

    async fn open_checked(&self, target: &Target) -> Result<MultiplexedConnection, StoreError> {
        let client = target.client().await?;
        // The engine has time limits of its own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let opened = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            let info: String = redis::cmd("INFO").query_async(&mut connection).await?;
            Ok((connection, info))
        };
        let (connection, info) = in_time(opened).await?;
        let info = server::Info::read(&info);
        server::check(&info, self.in_cluster)?;
        if let Some(acknowledgement) = &self.acknowledgement {
            acknowledgement.check(&info)?;
        }
        Ok(connection)
    }

    /// Whether an open connection still leads to the server that takes writes, as far as can be told from
    /// outside.
    async fn still_leads_to(&self, leads_to: &LeadsTo) -> bool {
        match (&self.way, leads_to) {
            (Way::Sentinels(sentinels), Some(address)) => sentinels.confirm(address).await,
            _ => true,
        }
    }

    fn lend(&self, connection: MultiplexedConnection, number: u64) -> Lent<'_> {
        Lent {
            connection,
            number,
            answered: false,
            home: self,
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens a connection. How long the client for it takes to make is not the server's fault.
async fn in_time<T>(opening: impl Future<Output = RedisResult<T>>) -> Result<T, StoreError> {
    let Ok(opened) = timeout(CONNECT_TIMEOUT, opening).await else {
        let message = format!(
            "the Redis server did not accept a connection within {CONNECT_TIMEOUT:?}; is it running, and is the address right?"
        );
        return Err(StoreError::new(StoreErrorKind::Unreachable, message));
    };
    opened.map_err(error::of_connect)
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Server");
        match &self.way {
            Way::Server(target) => shown.field("address", &target.to_string()),
            Way::Sentinels(sentinels) => shown.field("sentinels", sentinels),
        };
        shown.finish_non_exhaustive()
    }
}

/// The connection in use. If it is dropped before an answer arrived, nobody uses it any more: the requests
/// behind one that is not answered would not be answered either.
struct Lent<'a> {
    connection: MultiplexedConnection,
    number: u64,
    answered: bool,
    home: &'a Server,
}

impl Lent<'_> {
    async fn is_alive(&mut self) -> bool {
        let ping = redis::cmd("PING");
        let answer = timeout(SIGN_OF_LIFE, ping.exec_async(&mut self.connection)).await;
        matches!(answer, Ok(Ok(())))
    }

    async fn acknowledge(
        mut self,
        answer: RedisResult<Value>,
        call: &Call<'_>,
    ) -> Result<Answer, StoreError> {
        let open = match &self.home.acknowledgement {
            Some(acknowledgement) if answer.is_ok() && call.is_acknowledged() => {
                let waited = acknowledgement.wait(&mut self.connection).await;
                waited.err().map(|error| error::at(self.home.name(), error))
            }
            _ => None,
        };
        let value = self.finish(answer)?;
        Ok(Answer { value, open })
    }

    fn finish<T>(mut self, answer: RedisResult<T>) -> Result<T, StoreError> {
        let answer = answer.map_err(|error| error::at(self.home.name(), error::of_call(error)));
        // After a fail-over a new connection may find the primary.
        let leave = [StoreErrorKind::Interrupted, StoreErrorKind::Unreachable];
        self.answered = answer
            .as_ref()
            .err()
            .is_none_or(|error| !leave.contains(&error.kind()));
        answer
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut open = self.home.open();
        if !self.answered && open.number == self.number {
            open.connection = None;
            open.has_ended = true;
        }
    }
}
