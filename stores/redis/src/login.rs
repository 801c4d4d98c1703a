//! How the servers of one deployment are logged in to, whatever their address.

use std::fmt;
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Pipeline, RedisResult};
use tokio::time::timeout;

use crate::error;

/// Time limit for a question to a server that is asked where another one is. It leaves time to ask the next.
const TIMEOUT: Duration = Duration::from_millis(500);

/// A URL without its address.
#[derive(Clone)]
pub(crate) struct Login {
    before: String,
    after: String,
}

impl Login {
    /// `user` is `user:password` as in a URL, or nothing.
    pub(crate) fn new(protocol: &str, user: &str, database: &str) -> Self {
        let at = if user.is_empty() { "" } else { "@" };
        Self {
            before: format!("{protocol}://{user}{at}"),
            after: format!("/{database}"),
        }
    }

    /// Opens nothing yet.
    pub(crate) fn client(&self, address: &str) -> Result<Client, StoreError> {
        opened(&format!("{}{address}{}", self.before, self.after))
    }

    /// Asks one server several things in one message, on a connection of its own. Nothing that matters is sent in this
    /// way.
    pub(crate) async fn ask_all<T: FromRedisValue>(
        &self,
        address: &str,
        questions: &Pipeline,
    ) -> Result<T, StoreError> {
        let client = self.client(address)?;
        let asked = async { questions.query_async(&mut connect(&client).await?).await };
        in_time(address, asked).await
    }
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn in_time<T>(address: &str, asked: impl Future<Output = RedisResult<T>>) -> Result<T, StoreError> {
    let answer = match timeout(TIMEOUT, asked).await {
        Ok(answer) => answer.map_err(error::of_connect),
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

/// The error says what is wrong, and has nothing of the URL.
pub(crate) fn opened(url: &str) -> Result<Client, StoreError> {
    Client::open(url).map_err(|error| {
        let message = format!("the Redis URL cannot be read: {}", error.category());
        StoreError::new(StoreErrorKind::Unsupported, message)
    })
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
