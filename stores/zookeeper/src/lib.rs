//! Locks of [`dblock`](https://docs.rs/dblock) in Apache ZooKeeper.
#![doc = concat!("\n", include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod admin;
mod apply;
mod diagnose;
mod error;
mod fence;
mod held;
mod listen;
mod place;
mod purge;
mod row;
mod rows;
mod session;
#[cfg(test)]
mod tests;
mod url;
mod way;

use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{
    Capabilities, Outcome, Purged, Request, Store, StoreError, StoreFuture, WakeUp, schemes,
};
use dblock_core::{Finding, InspectFilter, Key, LockError, LockRow};
use uuid::Uuid;
use zookeeper_client::Acl;
#[cfg(feature = "sasl-digest-md5")]
use zookeeper_client::SaslOptions;
#[cfg(feature = "tls-rustls")]
use zookeeper_client::TlsOptions;

pub use self::fence::Fence;
use self::session::Ensemble;
use self::way::Way;

/// The client that this store uses. Its types are those of [`ZookeeperStore::acls`].
pub use zookeeper_client;

/// The name of the store.
const NAME: &str = "zookeeper";

/// A session is not opened within less, because that is a commit.
const SHORTEST_SESSION: Duration = Duration::from_secs(1);

/// An opening is given up after a session's time.
const LONGEST_SESSION: Duration = Duration::from_hours(1);

/// Locks in ZooKeeper. It is made from a URL, and opens no session until it is used. Each manager has a
/// session of its own; the calls of this type itself share another one with its clones.
///
/// A manager takes it as its store:
///
/// ```no_run
/// use dblock::LockManager;
/// use dblock_zookeeper::ZookeeperStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = ZookeeperStore::new("zookeeper://one:2181,two:2181,three:2181")?;
/// let locks = LockManager::builder(store).build().await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ZookeeperStore {
    ensemble: Arc<Ensemble>,
}

/// From now on `LockManager::connect` takes the URLs of [`ZookeeperStore::new`], in the whole process.
///
/// ```no_run
/// # async fn example() -> Result<(), dblock::LockError> {
/// dblock_zookeeper::register();
/// let locks = dblock::LockManager::connect("zookeeper://zk-1,zk-2,zk-3").await?;
/// # Ok(()) }
/// ```
pub fn register() {
    schemes::register(&["zookeeper"], |url| Ok(Arc::new(ZookeeperStore::new(url)?)));
}

impl ZookeeperStore {
    /// A store in the ensemble of a URL, which names all of its servers:
    /// `zookeeper://one:2181,two:2181,three:2181`. Everything is kept below the node `/dblock`; with
    /// `zookeeper://…/node` below `/node`. With `zookeeper://user:password@…` the session has that user
    /// (ZooKeeper's scheme `digest`), and the nodes are for this user alone.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read. The message does not repeat the URL.
    pub fn new(url: &str) -> Result<Self, LockError> {
        Ok(Self::over(Way::new(url::read(url)?)))
    }

    fn over(way: Way) -> Self {
        let ensemble = Arc::new(Ensemble::new(Arc::new(way)));
        Self { ensemble }
    }

    /// The store with its way to the ensemble changed.
    fn with(&self, change: impl FnOnce(Way) -> Way) -> Self {
        Self::over(change(Way::clone(&self.ensemble.way)))
    }

    /// How long a session that is asked for lasts. ZooKeeper grants at least two and at most twenty of its ticks. A
    /// server that is silent for two fifths of what it has granted is taken for gone, and another one is asked.
    /// Choose a longer session where a commit takes longer than three seconds. Default: 15 seconds.
    ///
    /// # Errors
    /// [`LockError::Invalid`] below a second and above an hour.
    pub fn session_timeout(self, length: Duration) -> Result<Self, LockError> {
        if !(SHORTEST_SESSION..=LONGEST_SESSION).contains(&length) {
            return Err(LockError::invalid(format!(
                "a session of {length:?} is refused: give it from {SHORTEST_SESSION:?} to {LONGEST_SESSION:?}, a few times as \
                 long as a commit takes"
            )));
        }
        Ok(self.with(|way| way.with_session(length)))
    }

    /// Who may do what with the nodes that are made from now on. Default: the user of the URL or of SASL everything, if there is
    /// one, and else everybody everything. The store itself must be able to read, write, create and delete them.
    ///
    /// ```no_run
    /// use dblock_zookeeper::ZookeeperStore;
    /// use dblock_zookeeper::zookeeper_client::{Acl, AuthId, Permission};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let creator = Acl::new(Permission::ALL, AuthId::authed());
    /// let readers = Acl::new(Permission::READ, AuthId::anyone());
    /// let store = ZookeeperStore::new("zookeeper://user:password@one:2181")?.acls([creator, readers]);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn acls(self, acls: impl IntoIterator<Item = Acl>) -> Self {
        self.with(|way| way.with_acls(acls.into_iter().collect()))
    }

    /// TLS to all servers, whose ports in the URL are then those of `secureClientPort`. The options say which
    /// certificates are trusted, and have this client's own, if the servers ask for one. Default: no TLS.
    ///
    /// A program that has chosen no default cryptography for rustls (`CryptoProvider`) gets aws-lc-rs for the whole
    /// process: the client cannot be given another one.
    ///
    /// ```no_run
    /// use dblock_zookeeper::ZookeeperStore;
    /// use dblock_zookeeper::zookeeper_client::TlsOptions;
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let read = std::fs::read_to_string;
    /// let tls = TlsOptions::new()
    ///     .with_pem_ca(&read("ca.pem")?)?
    ///     .with_pem_identity(&read("client.pem")?, &read("client.key")?)?;
    /// let store = ZookeeperStore::new("zookeeper://one:2281,two:2281,three:2281")?.tls(tls);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls-rustls")]
    #[must_use]
    pub fn tls(self, options: TlsOptions) -> Self {
        // rustls needs a choice of who encrypts. The program makes it, or else we do: an error says that it is made.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        self.with(|way| way.with_tls(options))
    }

    /// A user of SASL, by its mechanism DIGEST-MD5, for servers whose JAAS file names the users. The nodes are for this user
    /// alone, as with a user in the URL. Default: no SASL.
    ///
    /// ```no_run
    /// use dblock_zookeeper::ZookeeperStore;
    /// use dblock_zookeeper::zookeeper_client::SaslOptions;
    ///
    /// # fn example() -> Result<(), dblock::LockError> {
    /// let user = SaslOptions::digest_md5("user", "password");
    /// let store = ZookeeperStore::new("zookeeper://one:2181,two:2181,three:2181")?.sasl(user);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sasl-digest-md5")]
    #[must_use]
    pub fn sasl(self, options: impl Into<SaslOptions>) -> Self {
        self.with(|way| way.with_sasl(options.into()))
    }

    /// The node of a lock's row, and the version that a transaction of yours in the same ZooKeeper must
    /// check. `None` if the row does not have the token any more: then somebody else has got the lock, or it
    /// is free. `key` is the `full_key` of the guard and `token` its token, after `pin`. The section
    /// "Checking the token in a transaction of yours" above has an example.
    ///
    /// It uses the session of a manager that was built from this store or a clone of it, so that nothing on the
    /// caller's runtime keeps a session open.
    ///
    /// # Errors
    /// When no manager was built from this store, or ZooKeeper cannot be asked; and for a key that [`Key`] refuses.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn fence(&self, key: &str, token: i64) -> Result<Option<Fence>, StoreError> {
        fence::fence(&self.ensemble, key, token).await
    }
}

impl Store for ZookeeperStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(NAME);
        capabilities.concurrency = 3;
        capabilities.wake_ups = true;
        capabilities.purge = true;
        capabilities.raises_tokens = true;
        capabilities.shares = true;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            if requests.is_empty() {
                return Vec::new();
            }
            let failed = |error: StoreError| requests.iter().map(|_| Err(error.clone())).collect();
            apply::apply(&self.ensemble, requests)
                .await
                .unwrap_or_else(failed)
        })
    }

    /// There are no tables. Our nodes are made with each session.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(async { self.ensemble.client().await.map(drop) })
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.check_schema()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(admin::inspect(&self.ensemble, filter))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::operate(&self.ensemble, key, |row| row.revoked = true))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(admin::operate(&self.ensemble, key, |row| {
            row.reentrant_count = 0;
            row.lease_id = Uuid::now_v7();
            row.next = None;
        }))
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            match listen::listen(&self.ensemble, tell).await {
                Err(error) => error,
                Ok(never) => match never {},
            }
        })
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        Box::pin(purge::purge(&self.ensemble, idle, after, limit))
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(diagnose::diagnose(&self.ensemble))
    }

    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        let ensemble = self.ensemble.for_manager();
        Some(Arc::new(Self { ensemble }))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async { self.ensemble.close() })
    }
}
