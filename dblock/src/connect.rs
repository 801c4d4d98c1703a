//! How a manager is made: from a URL, or from a pool or store by its builder.

use crate::LockError;
use crate::builder::LockManagerBuilder;
use crate::manager::LockManager;
use crate::store::source::Source;
use crate::url;

/// How a manager is made.
impl LockManager {
    /// A manager for a database URL: `postgres://`, `mysql://`, `mariadb://`, `sqlite://`, or `memory:`
    /// for locks that live in this process only. [`builder`](Self::builder) has the settings.
    ///
    /// For SQLite the file and the tables are created when they are missing. On the servers the tables must
    /// exist. To create them, build once with [`builder_for_url`](Self::builder_for_url) and
    /// `auto_migrate(true)`, call [`migrate`](crate::Admin::migrate), or run the database's script by hand. The
    /// scripts are in the folder `migrations/` of this crate's source. They use the default table name: for
    /// another one, change the names as [`table`](LockManagerBuilder::table) describes.
    ///
    /// A URL may name several servers of one database that replace each other:
    /// `postgres://app@db1,db2:5433/app`, `mysql://app@db1,db2/app`. The manager uses the one that takes
    /// writes. When a connection to it fails, or it refuses to write, the manager asks all of them again.
    /// Each change of the server is one line of the log. To callers a fail-over looks like a server that is
    /// away: an acquire goes on waiting, and leases survive if their ttl is longer than the fail-over.
    /// Transactions of your own, with their fence checks, use your own connections, which only you can move
    /// to another server.
    ///
    /// Each manager of `memory:` has its own rows. To share rows between two managers, give a clone of one
    /// [`MemoryStore`](crate::store::MemoryStore) to each [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or whose store is not compiled in,
    /// [`LockError::Store`] when the database cannot be reached, refuses, or has no table that fits this
    /// version.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind, except that a migration may still be carried out.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = dblock::LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::builder_for_url(url)?.build().await
    }

    /// Settings for a manager of a database URL, as for [`connect`](Self::connect).
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a URL that cannot be read or whose store is not compiled in.
    pub fn builder_for_url(url: &str) -> Result<LockManagerBuilder, LockError> {
        url::source(url).map(LockManagerBuilder::new)
    }

    /// Settings for a manager over the application's `PgPool`, `MySqlPool` or `SqlitePool`, a
    /// [`MemoryStore`](crate::store::MemoryStore), or a store of your own. From a pool, only the connection
    /// options are used: the manager opens at most four connections of its own, so that a full pool cannot
    /// stop renewals.
    pub fn builder<M: ?Sized>(source: impl Source<M>) -> LockManagerBuilder {
        LockManagerBuilder::new(source.into_source())
    }
}
