//! How the servers of one deployment are logged in to, whatever their address.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, FromRedisValue, IntoConnectionInfo as _, Pipeline,
    RedisResult,
};
use tokio::time::timeout;

use crate::error;

/// Time limit for a question to a server that is asked where another one is. It leaves time to ask the next.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Time limit for making a client, which may ask elsewhere for a password. It says nothing of the server.
const MAKING: Duration = Duration::from_secs(10);

type MakingClient = Pin<Box<dyn Future<Output = Result<Client, Box<dyn Error + Send + Sync>>> + Send>>;

/// What makes a client each time that a connection is opened. Clones share it.
#[derive(Clone)]
pub(crate) struct Clients(Arc<dyn Fn(ConnectionInfo) -> MakingClient + Send + Sync>);

impl Clients {
    pub(crate) fn new<F, E>(make: impl Fn(ConnectionInfo) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Client, E>> + Send + 'static,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        Self(Arc::new(move |server| {
            let client = make(server);
            Box::pin(async { client.await.map_err(Into::into) })
        }))
    }
}

impl Default for Clients {
    fn default() -> Self {
        Self::new(|server| async { Client::open(server) })
    }
}

/// One server: its address, and how it is logged in to.
#[derive(Clone)]
pub(crate) struct Target {
    info: Arc<ConnectionInfo>,
    clients: Clients,
}

impl Target {
    /// The error says what is wrong, and has nothing of the URL.
    pub(crate) fn of(url: &str) -> Result<Self, StoreError> {
        let info = url.into_connection_info().map_err(|error| {
            let message = format!("the Redis URL cannot be read: {}", error.category());
            StoreError::new(StoreErrorKind::Unsupported, message)
        })?;
        Ok(Self {
            info: Arc::new(info),
            clients: Clients::default(),
        })
    }

    pub(crate) fn of_client(client: Client) -> Self {
        Self {
            info: Arc::new(client.get_connection_info().clone()),
            clients: Clients::new(move |_| std::future::ready(Ok::<_, redis::RedisError>(client.clone()))),
        }
    }

    pub(crate) fn made_by(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// The client for a connection that is about to be opened.
    pub(crate) async fn client(&self) -> Result<Client, StoreError> {
        let made = timeout(MAKING, (self.clients.0)((*self.info).clone())).await;
        let made = made.unwrap_or_else(|_| Err(format!("it is not there after {MAKING:?}").into()));
        made.map_err(|error| {
            let message = format!("the client for the Redis server cannot be made: {error}");
            StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
        })
    }

    pub(crate) fn database(&self) -> i64 {
        self.info.redis_settings().db()
    }
}

/// Host and port, or the path of a socket.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.addr().fmt(f)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

/// A URL without its address.
#[derive(Clone)]
pub(crate) struct Login {
    before: String,
    after: String,
    clients: Clients,
}

impl Login {
    /// `user` is `user:password` as in a URL, or nothing.
    pub(crate) fn new(protocol: &str, user: &str, database: &str) -> Self {
        let at = if user.is_empty() { "" } else { "@" };
        Self {
            before: format!("{protocol}://{user}{at}"),
            after: format!("/{database}"),
            clients: Clients::default(),
        }
    }

    pub(crate) fn made_by(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// The server at this address.
    pub(crate) fn at(&self, address: &str) -> Result<Target, StoreError> {
        let url = format!("{}{address}{}", self.before, self.after);
        Ok(Target::of(&url)?.made_by(self.clients.clone()))
    }

    /// Asks one server several things in one message, on the open connection if there is one that works. Returns the
    /// connection, too. Nothing that matters is sent in this way.
    pub(crate) async fn ask_all<T: FromRedisValue>(
        &self,
        address: &str,
        questions: &Pipeline,
        open: Option<MultiplexedConnection>,
    ) -> Result<(T, MultiplexedConnection), StoreError> {
        let target = self.at(address)?;
        if let Some(mut connection) = open {
            let asked = async { Ok(questions.query_async(&mut connection).await.ok()) };
            if let Some(answer) = in_time(address, asked).await? {
                return Ok((answer, connection));
            }
        }
        let client = target.client().await;
        let client = client.map_err(|error| error::at(address, error))?;
        in_time(address, async {
            let mut connection = connect(&client).await.map_err(error::of_connect)?;
            let answer = questions.query_async(&mut connection).await;
            Ok((answer.map_err(error::of_connect)?, connection))
        })
        .await
    }
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn in_time<T>(
    address: &str,
    asked: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let answer = match timeout(TIMEOUT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::new(
            StoreErrorKind::Unreachable,
            format!(
                "the Redis server did not answer within {TIMEOUT:?}; is it running, and is the address right?"
            ),
        )),
    };
    answer.map_err(|error| error::at(address, error))
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

/// An address with its port: an IPv6 address is in brackets.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    let named = host.rsplit_once(']').map_or(host, |(_, port)| port);
    if named.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

/// The address of a server as others tell it, where an IPv6 address has no brackets.
pub(crate) fn address(host: &str, port: impl fmt::Display) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The same, as the server at `asked` tells it. A server that does not know its own host leaves it out: then
/// it is the host of `asked`.
pub(crate) fn named_by(asked: &str, named: &str) -> String {
    let (host, port) = named.rsplit_once(':').unwrap_or((named, ""));
    if !matches!(host, "" | "?") {
        return address(host, port);
    }
    let host = asked.rsplit_once(':').map_or(asked, |(host, _)| host);
    format!("{host}:{port}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_is_not_waited_for_for_ever() {
        let never = Clients::new(|_| std::future::pending::<RedisResult<Client>>());
        let target = Target::of("redis://localhost").unwrap().made_by(never);
        let begun = tokio::time::Instant::now();
        let failed = target.client().await.unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), 10, "{failed}");
    }
}
