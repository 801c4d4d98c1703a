//! Locks of [`dblock`](https://docs.rs/dblock) in Redis or Valkey.
#![doc = concat!("\n", include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod acknowledge;
mod admin;
mod apply;
mod call;
mod certificates;
mod cluster;
mod deployment;
mod diagnose;
mod error;
mod listen;
mod login;
mod row;
mod script;
mod sentinel;
mod server;
mod session;
mod shards;
mod slots;
#[cfg(test)]
mod tests;
mod url;

use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::clock::micros;
use dblock_core::store::schemes;
use dblock_core::store::{
    Capabilities, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp,
};
use dblock_core::{Finding, InspectFilter, Key, LockError, LockRow};
use futures_util::future::join_all;
use redis::Value;
use uuid::Uuid;

use self::acknowledge::Acknowledgement;
use self::call::Call;
use self::certificates::Certificates;
use self::deployment::Deployment;
use self::login::{Clients, Target};
use self::script::Scripts;
use self::session::{Server, Way};

/// The client that this store uses. [`RedisStore::connect_with`] takes one of it.
pub use redis;

/// A fence check for a script of yours, as a function in Lua: `dblock_holds(row_key, token)`. Put it before
/// your script, and see the section "Checking the token in a script of yours" above. [`RedisStore::row_key`] is the
/// key of a lock's row.
pub const VERIFY: &str = include_str!("lua/verify.lua");

/// The name of the store.
const NAME: &str = "redis";

/// How long the server keeps the row of a key that nobody uses.
const DEFAULT_IDLE: Duration = Duration::from_hours(7 * 24);

/// The shortest idle time. The first token of a key without a row is the clock's, so tokens grow as long as
/// the clock is set back by less.
const SHORTEST_IDLE: Duration = Duration::from_hours(24);

/// Locks in Redis or Valkey: on one server, on the primary that Sentinels name, or in a cluster. Made from a
/// URL, it opens nothing until it is used.
///
/// A manager takes it as its store:
///
/// ```no_run
/// use dblock::LockManager;
/// use dblock_redis::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::builder(RedisStore::new("redis://localhost")?).build().await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    deployment: Deployment,
    scripts: Scripts,
    /// Those of the URL.
    certificates: Certificates,
    prefix: String,
    idle: Duration,
    /// A lease passes on to its successor within the release.
    passes_on: bool,
}

/// A setting is refused before anything is sent.
fn invalid(error: &StoreError) -> LockError {
    LockError::invalid(error.to_string())
}

/// From now on `LockManager::connect` takes the URLs of [`RedisStore::new`], in the whole process.
///
/// ```no_run
/// # async fn example() -> Result<(), dblock::LockError> {
/// dblock_redis::register();
/// let locks = dblock::LockManager::connect("redis://localhost").await?;
/// # Ok(()) }
/// ```
pub fn register() {
    schemes::register(&["redis", "rediss", "valkey", "valkeys"], |url| {
        Ok(Arc::new(RedisStore::new(url)?))
    });
}

impl RedisStore {
    /// A store on the server of a URL: `redis://user:password@host:port/database`, or `valkey://…`, which
    /// means the same. `rediss://…` uses TLS, and needs the feature `tls-rustls`.
    /// `redis+unix:///path/of/the.sock` is a Unix socket.
    ///
    /// `redis+sentinel://user:password@sentinel:26379,sentinel:26379/NAME/database` is the primary that these
    /// Sentinels watch by that name; `?sentinel_username=…&sentinel_password=…` is for the Sentinels
    /// themselves.
    ///
    /// `redis+cluster://user:password@node:6379,node:6379?shards=16` is a Redis Cluster, some of whose
    /// servers are named. All managers that share locks must give the same number of shards, from 1 to 256.
    /// Default: 16.
    ///
    /// `?prefix=…` works in all of these URLs, and means the same as [`prefix`](Self::prefix). With TLS
    /// `?ca=…` is a file with the authorities to trust, and no others (those of the system are read all the same, and must
    /// be readable), and `?certificate=…&key=…` are files for a
    /// server that asks who the client is. They are in the PEM format, and are read for each connection.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or has an option that its kind does not know, and for
    /// certificates that cannot be read. The message does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, LockError> {
        let (place, common) = url::read(url).map_err(|error| invalid(&error))?;
        let mut store = Self::at(Deployment::new(place));
        if !common.certificates.are_none() {
            common.certificates.check().map_err(|error| invalid(&error))?;
            store.certificates = common.certificates;
            store = store.connect_with(|server| std::future::ready(redis::Client::open(server)));
        }
        Ok(match common.prefix {
            Some(prefix) => store.prefix(prefix),
            None => store,
        })
    }

    fn at(deployment: Deployment) -> Self {
        Self {
            deployment,
            scripts: Scripts::new(),
            certificates: Certificates::default(),
            prefix: "dblock".to_owned(),
            idle: DEFAULT_IDLE,
            passes_on: true,
        }
    }

    /// Connects with clients of yours: for a password that changes while the program runs, or for certificates
    /// that are in no file. `make` is called each time a connection is opened, to a Sentinel too. It gets the address,
    /// the login and the certificates from the URL. When it fails, or takes longer than 10 seconds, the server counts as
    /// unreachable. A request is given up after 2.5 seconds in all, so get what takes longer beforehand.
    ///
    /// An open connection stays open when its password expires. What the server refuses then opens a new one.
    ///
    /// ```no_run
    /// use dblock_redis::RedisStore;
    /// use dblock_redis::redis::{Client, ConnectionInfo};
    ///
    /// # async fn token() -> Result<String, std::io::Error> { unimplemented!() }
    /// # fn example() -> Result<(), dblock::LockError> {
    /// type Error = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// let store = RedisStore::new("redis+cluster://locks@redis-1,redis-2")?;
    /// let store = store.connect_with(|server: ConnectionInfo| async {
    ///     let login = server.redis_settings().clone().set_password(token().await?);
    ///     Ok::<_, Error>(Client::open(server.set_redis_settings(login))?)
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn connect_with<F, E>(self, make: impl Fn(redis::ConnectionInfo) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<redis::Client, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let certificates = self.certificates.clone();
        let clients = Clients::new(move |server| {
            let making = certificates.for_server(server).map(&make);
            async { making?.await.map_err(Into::into) }
        });
        Self {
            deployment: self.deployment.made_by(clients),
            ..self
        }
    }

    /// Makes an acquire, a renewal or a release count only when `replicas` replicas have it in their memory
    /// (`WAIT`). The server waits for them for at most `within`, from 1 ms to 1 s. If they do not have it by
    /// then, the outcome is unknown: an acquire is not granted, and its lease is released. This makes it
    /// unlikely that a fail-over loses a lock, not impossible. By default no replica is waited for.
    ///
    /// A release then never passes the lock on to the next process, because nothing would wait for the
    /// replicas of that grant. The next process asks for the lock instead.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for 0 replicas, and for a time below 1 ms or above 1 s.
    pub fn acknowledged_by(self, replicas: u32, within: Duration) -> Result<Self, LockError> {
        let acknowledgement =
            Acknowledgement::new(replicas, within, false).map_err(|error| invalid(&error))?;
        Ok(self.acknowledged(acknowledgement))
    }

    /// As [`acknowledged_by`](Self::acknowledged_by), but on disks (`WAITAOF`): on the disk of the primary
    /// and on those of `replicas` replicas, which may be 0. It needs Redis 7.2 or later, or Valkey, and
    /// `appendonly yes`.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a time below 1 ms or above 1 s.
    pub fn synced_by(self, replicas: u32, within: Duration) -> Result<Self, LockError> {
        let acknowledgement =
            Acknowledgement::new(replicas, within, true).map_err(|error| invalid(&error))?;
        Ok(self.acknowledged(acknowledgement))
    }

    fn acknowledged(self, acknowledgement: Acknowledgement) -> Self {
        Self {
            deployment: self.deployment.acknowledged_by(acknowledgement),
            passes_on: false,
            ..self
        }
    }

    /// The beginning of the names of all keys and of the channel. Default: `dblock`, so the lock `order:42`
    /// is the key `dblock:lock:order:42`. All managers that share locks must have the same one.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server keeps the row of a key that nobody uses. Default: 7 days. A row takes about 300
    /// bytes of the server's memory. Fence tokens grow unless the server's clock is set back by more than
    /// this.
    ///
    /// # Errors
    /// [`LockError::Invalid`] below a day.
    pub fn idle(mut self, idle: Duration) -> Result<Self, LockError> {
        if idle < SHORTEST_IDLE {
            return Err(LockError::invalid(format!(
                "an idle time of {idle:?} is refused: give it at least a day, so that fence tokens grow even when the \
                 server's clock is set back"
            )));
        }
        self.idle = idle;
        Ok(self)
    }

    /// The beginning of the names of a shard's rows. Without shards there is no tag.
    fn row_prefix(&self, shard: Option<u16>) -> String {
        match shard {
            None => format!("{}:lock:", self.prefix),
            Some(shard) => format!("{}:lock:", shards::tag(&self.prefix, shard)),
        }
    }

    /// The name of the row of a lock, for a script of yours with [`VERIFY`]. `full_key` is that of the guard. In a
    /// cluster the text in the braces is the tag, which all keys of such a script must have.
    ///
    /// ```
    /// use dblock_redis::RedisStore;
    ///
    /// let one = RedisStore::new("redis://localhost")?;
    /// assert_eq!(one.row_key("order:42"), "dblock:lock:order:42");
    /// let cluster = RedisStore::new("redis+cluster://redis-1,redis-2")?;
    /// assert_eq!(cluster.row_key("order:42"), "{dblock:3}:lock:order:42");
    /// # Ok::<_, dblock::LockError>(())
    /// ```
    pub fn row_key(&self, full_key: &str) -> String {
        let prefix = self.row_prefix(self.deployment.shard(full_key));
        prefix + full_key
    }

    /// Channels are shared by the databases of a server, and rows are not.
    fn channel(&self) -> String {
        format!("{}:wake-ups:{}", self.prefix, self.deployment.database())
    }

    /// The arguments that come first in each script that writes.
    fn add_place(&self, call: &mut Call<'_>, shard: Option<u16>) {
        call.arg(self.channel())
            .arg(self.row_prefix(shard).len())
            .arg(micros(self.idle));
    }
}

/// One server, by a client of yours. The prefix is the default.
///
/// ```
/// use dblock_redis::RedisStore;
/// use dblock_redis::redis::Client;
///
/// let store = RedisStore::from(Client::open("redis://localhost").expect("a URL"));
/// ```
impl From<redis::Client> for RedisStore {
    fn from(client: redis::Client) -> Self {
        // Without the feature the client has no TLS either.
        let _ = url::secure();
        let server = Server::new(Way::Server(Target::of_client(client)), false);
        Self::at(Deployment::Server(Arc::new(server)))
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(NAME);
        capabilities.concurrency = 3;
        capabilities.parts = self.deployment.parts();
        capabilities.wake_ups = true;
        capabilities.queues = self.passes_on;
        capabilities.raises_tokens = true;
        // Without places in the row readers would keep a writer out for good.
        capabilities.shares = self.passes_on;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(apply::apply(self, requests))
    }

    /// There are no tables. Whether the server can keep locks is checked with each connection.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async {
            self.deployment.agree(&self.prefix).await?;
            let ping = redis::cmd("PING");
            let servers = self.deployment.servers().await?;
            let pinged = servers.iter().map(|(_, server)| server.ask::<Value>(&ping));
            let (mut reached, mut failed) = (false, None);
            for answer in join_all(pinged).await {
                match answer {
                    Ok(_) => reached = true,
                    // The others of a cluster have keys too.
                    Err(error) if error.is_retryable() => failed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            failed.filter(|_| !reached).map_or(Ok(()), Err)
        })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.check_schema()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(admin::inspect(self, filter))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::operate(self, key, &[b"revoke"]))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let fresh = Uuid::now_v7();
            admin::operate(self, key, &[b"free", fresh.as_bytes()]).await
        })
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            let (subscription, address) = match self.deployment.listener().await {
                Ok(opened) => opened,
                Err(error) => return error,
            };
            let channel = self.channel();
            tokio::select! {
                ended = listen::listen(subscription, &channel, tell) => match ended {
                    Err(error) => error::at(address, error),
                    Ok(never) => match never {},
                },
                () = self.deployment.left(&address) => {
                    let message = format!("{address}: the server has left the Redis Cluster, so another one is listened to");
                    StoreError::new(StoreErrorKind::Interrupted, message)
                }
            }
        })
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(diagnose::diagnose(&self.deployment))
    }

    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self {
            deployment: self.deployment.again(),
            scripts: Scripts::new(),
            certificates: self.certificates.clone(),
            prefix: self.prefix.clone(),
            idle: self.idle,
            passes_on: self.passes_on,
        }))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.deployment.close() })
    }

    /// The shard, so that a server that hangs delays no keys but its own.
    fn part_of(&self, key: &Key) -> usize {
        self.deployment.shard(key.as_ref()).unwrap_or_default().into()
    }
}
