//! Locks of [`dblock`](https://docs.rs/dblock) in etcd.
#![doc = concat!("\n", include_str!("../README.md"))]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod address;
mod admin;
mod apply;
mod error;
mod keys;
mod leases;
mod listen;
mod look;
mod places;
mod row;
mod server;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{Capabilities, Outcome, Request, Store, StoreError, StoreFuture, WakeUp, schemes};
use dblock_core::{Finding, InspectFilter, Key, LockError, LockRow};
#[cfg(feature = "tls-rustls")]
use etcd_client::TlsOptions;
use etcd_client::{Compare, CompareOp, ConnectOptions};

use self::keys::Keys;
use self::leases::Leases;
use self::places::Places;
use self::session::Members;

/// The answer to a request.
type Answer = Result<Outcome, StoreError>;

/// The client that this store uses. [`EtcdStore::holds`] returns a compare of it.
pub use etcd_client;

/// The name of the store.
const NAME: &str = "etcd";

/// Locks in an etcd cluster. It is made from addresses, and opens no connection until it is used. Each
/// manager has a connection of its own.
///
/// A manager takes it as its store:
///
/// ```no_run
/// use dblock::LockManager;
/// use dblock_etcd::EtcdStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = EtcdStore::new(["http://etcd-1:2379", "http://etcd-2:2379", "http://etcd-3:2379"])?;
/// let locks = LockManager::builder(store).build().await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct EtcdStore {
    members: Arc<Members>,
    names: Arc<Keys>,
    places: Arc<Places>,
    leases: Arc<Leases>,
}

/// From now on `LockManager::connect` takes the URLs of [`EtcdStore::from_url`], in the whole process.
///
/// ```no_run
/// # async fn example() -> Result<(), dblock::LockError> {
/// dblock_etcd::register();
/// let locks = dblock::LockManager::connect("etcd://etcd-1:2379,etcd-2:2379,etcd-3:2379").await?;
/// # Ok(()) }
/// ```
pub fn register() {
    schemes::register(&["etcd", "etcds"], |url| Ok(Arc::new(EtcdStore::from_url(url)?)));
}

impl EtcdStore {
    /// A store on the members of a URL: `etcd://user:password@etcd-1:2379,etcd-2:2379/prefix`, or with `etcds://` over
    /// TLS, which trusts the certificates of the system. User and [prefix](Self::prefix) may be left out.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
    pub fn from_url(url: &str) -> Result<Self, LockError> {
        let address::Parts {
            addresses,
            user,
            prefix,
        } = address::read(url)?;
        let mut store = Self::new(addresses)?;
        if let Some((name, password)) = user {
            store = store.user(name, password);
        }
        Ok(match prefix {
            Some(prefix) => store.prefix(prefix),
            None => store,
        })
    }

    /// A store on the members with these addresses, such as `http://etcd-1:2379`, or `https://etcd-1:2379` with the
    /// feature `tls-rustls`. It has one open connection at a time. When that breaks, or its member knows no
    /// leader, the store tries the next member.
    ///
    /// # Errors
    /// [`LockError::Invalid`] without addresses, for one that cannot be read, for `https://` without the feature, and
    /// if some addresses have `https://` and some `http://`. The message does not repeat an address.
    pub fn new(addresses: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, LockError> {
        let addresses = address::checked(addresses)?;
        let prefix = "dblock".to_owned();
        let options = ConnectOptions::new();
        #[cfg(feature = "tls-rustls")]
        let options = if address::has(&addresses, address::HTTPS) {
            options.with_tls(TlsOptions::new().with_native_roots())
        } else {
            options
        };
        Ok(Self {
            members: Arc::new(Members::new(addresses, options)),
            names: Arc::new(Keys { prefix }),
            places: Arc::default(),
            leases: Arc::default(),
        })
    }

    /// The user for etcd's authentication. Default: none.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.members = Arc::new(self.members.with_user(name.into(), password.into()));
        self
    }

    /// Which certificates are trusted, and this client's own certificate and key, if etcd asks for one
    /// (`--client-cert-auth`). Default for addresses with `https://`: the certificates of the system, and
    /// none of one's own.
    ///
    /// ```no_run
    /// use dblock_etcd::EtcdStore;
    /// use dblock_etcd::etcd_client::{Certificate, Identity, TlsOptions};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let (certificate, key) = (std::fs::read("client.pem")?, std::fs::read("client.key")?);
    /// let tls = TlsOptions::new()
    ///     .ca_certificate(Certificate::from_pem(std::fs::read("ca.pem")?))
    ///     .identity(Identity::from_pem(certificate, key));
    /// let store = EtcdStore::new(["https://etcd-1:2379", "https://etcd-2:2379"])?.tls(tls)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] for an address with `http://`, and for a certificate or a key that cannot be read.
    #[cfg(feature = "tls-rustls")]
    pub fn tls(mut self, options: TlsOptions) -> Result<Self, LockError> {
        address::check_tls(&self.members.addresses, &options)?;
        let options = ConnectOptions::new().with_tls(options);
        self.members = Arc::new(self.members.with(options));
        Ok(self)
    }

    /// The beginning of the names of all keys. Default: `dblock`, so the lock `order:42` is the key
    /// `dblock/lock/order:42`. All managers that share locks must have the same one. A `/` at its end changes nothing.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        let mut prefix = prefix.into();
        prefix.truncate(prefix.trim_end_matches('/').len());
        self.names = Arc::new(Keys { prefix });
        self.places = Arc::default();
        self
    }

    /// A condition for a transaction of yours in the same cluster: the owner with this `fence_token` still
    /// has the lock `key`, which is the `full_key` of the guard. Call
    /// `LockGuard::pin` first, as the section "A condition for your own
    /// transaction" above shows. Without it the lock may go to another task in memory, and the condition
    /// cannot tell that task's ownership from yours. Nor can it tell the owners apart between which a ticket has gone:
    /// wait for the answers of such transactions before `LockGuard::into_ticket`.
    pub fn holds(&self, key: &str, fence_token: i64) -> Compare {
        let (slot, revision) = row::created_at(fence_token);
        let key = format!("{}{key}", self.names.rows(slot));
        Compare::create_revision(key, CompareOp::Equal, revision)
    }

    async fn check(&self) -> Result<(), StoreError> {
        let mut lent = self.members.take().await?;
        let revisions = server::revisions(&mut lent.client, &self.names).await;
        let (revision, first_is_there) = lent.finish(revisions)?;
        server::check_compaction(revision, first_is_there)
    }

    async fn look_around(&self) -> Result<Vec<Finding>, StoreError> {
        let mut lent = self.members.take().await?;
        let client = &mut lent.client;
        let looked = async {
            let status = client.status().await.map_err(error::of_harmless)?;
            Ok((status, server::revisions(client, &self.names).await?))
        }
        .await;
        let (status, (revision, first_is_there)) = lent.finish(looked)?;
        Ok(vec![
            server::version(&status),
            server::compaction(revision, first_is_there),
        ])
    }
}

impl Store for EtcdStore {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new(NAME);
        capabilities.concurrency = 3;
        capabilities.wake_ups = true;
        capabilities.shortest_ttl = Duration::from_secs(2);
        capabilities.clock = false;
        capabilities.former_leases = false;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Answer>> {
        Box::pin(apply::apply(self, requests))
    }

    /// There are no tables. Checks whether the cluster can keep locks.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        Box::pin(self.check())
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.check_schema()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        Box::pin(async move {
            let mut lent = self.members.take().await?;
            let rows = admin::inspect(&mut lent.client, &self.names, filter).await;
            lent.finish(rows)
        })
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut lent = self.members.take().await?;
            let revoked = admin::mark_revoked(&mut lent.client, &self.names, key).await;
            lent.finish(revoked)
        })
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let mut lent = self.members.take().await?;
            let freed = admin::free(&mut lent.client, &self.names, key).await;
            lent.finish(freed)
        })
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        Box::pin(async move {
            let mut lent = match self.members.take().await {
                Ok(lent) => lent,
                Err(error) => return error,
            };
            lent.may_be_dropped();
            let mut client = lent.client.clone();
            match lent.finish(listen::listen(&mut client, &self.names, &self.places, tell).await) {
                Err(error) => error,
                Ok(never) => match never {},
            }
        })
    }

    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(self.look_around())
    }

    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self {
            members: Arc::new(self.members.again()),
            names: Arc::clone(&self.names),
            places: Arc::default(),
            leases: Arc::default(),
        }))
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            if let Some(client) = self.members.close() {
                self.leases.revoke_idle(&client).await;
            }
        })
    }
}
