//! Locks of [`dblock`] in Redis or Valkey.
#![doc = concat!("\n", include_str!("../README.md"))]

mod answer;
mod connection;
mod diagnose;
mod error;
mod listen;
mod rows;
mod script;
mod server;
#[cfg(test)]
mod tests;
mod url;

use std::sync::Arc;
use std::time::Duration;

use dblock::store::clock::micros;
use dblock::store::{Capabilities, Outcome, Request, Store, StoreError, StoreErrorKind, StoreFuture, WakeUp};
use dblock::{Finding, InspectFilter, Key, LockRow, StoreSource};
use redis::{ScriptInvocation, Value};
use uuid::Uuid;

use self::answer::Columns;
use self::connection::Server;
use self::script::Scripts;

/// A fence check for a script of yours, as a function in Lua: `dblock_holds(row_key, token)`. Put it before your script,
/// and see the section "Checking the token in a script of yours" above. The row of the lock `order:42` is the key
/// `dblock:lock:order:42`.
pub const VERIFY: &str = include_str!("lua/verify.lua");

/// How long the server keeps the row of a key that nobody uses.
const DEFAULT_IDLE: Duration = Duration::from_hours(7 * 24);

/// The shortest idle time. The first token of a key without a row is the clock's, so tokens grow as long as the clock is
/// set back by less.
const SHORTEST_IDLE: Duration = Duration::from_hours(24);

/// Locks on one Redis or Valkey server. Made from a URL, it opens nothing until it is used.
///
/// A manager takes it as its store:
///
/// ```no_run
/// use dblock::{LockManager, LockOptions};
/// use dblock_redis::RedisStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let locks = LockManager::builder(RedisStore::new("redis://localhost")?).build().await?;
/// let guard = locks.acquire("order:42", LockOptions::new()).await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    server: Server,
    scripts: Scripts,
    prefix: String,
    idle: Duration,
}

impl RedisStore {
    /// A store on the server of a URL: `redis://user:password@host:port/database`, or `valkey://…`, which means the same.
    /// `rediss://…` is with TLS, which needs the feature `tls-rustls`. Unix: `redis+unix:///path/of/the.sock`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unsupported`] for a URL that cannot be read, and for one of a Redis Cluster or of Sentinel. The
    /// message does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, StoreError> {
        Ok(Self {
            server: Server::new(url::client(url)?),
            scripts: Scripts::new(),
            prefix: "dblock".to_owned(),
            idle: DEFAULT_IDLE,
        })
    }

    /// What the names of all keys and of the channel begin with. Default: `dblock`, so the lock `order:42` is the key
    /// `dblock:lock:order:42`. All managers that share locks must have the same one.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// How long the server keeps the row of a key that nobody uses. Default: 7 days. A row takes about 300 bytes of the
    /// server's memory. Fence tokens grow as long as the server's clock is never set back by more than this.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unsupported`] below a day.
    pub fn idle(mut self, idle: Duration) -> Result<Self, StoreError> {
        if idle < SHORTEST_IDLE {
            let message = format!(
                "an idle time of {idle:?} is refused: give it at least a day, so that fence tokens grow even when the \
                 server's clock is set back"
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
        self.idle = idle;
        Ok(self)
    }

    /// What the names of rows begin with.
    fn row_prefix(&self) -> String {
        format!("{}:lock:", self.prefix)
    }

    fn row_key(&self, key: &Key) -> String {
        format!("{}{key}", self.row_prefix())
    }

    /// Channels are shared by the databases of a server, and rows are not.
    fn channel(&self) -> String {
        format!("{}:wake-ups:{}", self.prefix, self.server.database())
    }

    /// The arguments that come first in each script that writes.
    fn add_place(&self, script: &mut ScriptInvocation<'_>) {
        script
            .arg(self.channel())
            .arg(self.row_prefix().len())
            .arg(micros(self.idle));
    }

    /// Sends the requests in one script. The answers are those of the requests that it knows.
    async fn send(&self, requests: &[Request]) -> Result<Vec<Result<Outcome, StoreError>>, StoreError> {
        let apply = self.server.run(&self.scripts.apply, |apply| {
            self.add_place(apply);
            for request in requests {
                apply.key(self.row_key(&request.key));
                script::add(apply, request);
            }
        });
        let answers = Columns::of(apply.await?)?.answers();
        let answered = requests.iter().zip(answers);
        Ok(answered
            .map(|(request, answer)| answer::outcome(answer, &request.key))
            .collect())
    }
}

impl From<RedisStore> for StoreSource {
    fn from(store: RedisStore) -> Self {
        Self::from(Arc::new(store) as Arc<dyn Store>)
    }
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("redis");
        capabilities.concurrency = 3;
        capabilities.wake_ups = true;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            if requests.is_empty() {
                return Vec::new();
            }
            let failed = |error: StoreError| requests.iter().map(|_| Err(error.clone())).collect();
            if let Some(error) = requests
                .iter()
                .find_map(|request| script::check(&request.action).err())
            {
                return failed(error);
            }
            self.send(requests).await.unwrap_or_else(failed)
        })
    }

    /// There are no tables. Whether the server can keep locks is checked with each connection.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.server.ask::<Value>(&redis::cmd("PING")).await.map(drop) })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.check_schema()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(rows::inspect(self, filter))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(rows::operate(self, key, &[b"revoke"]))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let fresh = Uuid::now_v7();
            rows::operate(self, key, &[b"free", fresh.as_bytes()]).await
        })
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            match listen::listen(&self.server, &self.channel(), tell).await {
                Err(error) => error,
                Ok(never) => match never {},
            }
        })
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(diagnose::diagnose(&self.server))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.server.close() })
    }
}
