//! The place where a manager keeps its locks: a URL, a pool, a function that gives connect options, or a
//! store. What leads to a database is beside its store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Store;
use super::table::TableName;
use crate::LockError;

/// The default of
/// [`LockManagerBuilder::transaction_idle_limit`](crate::LockManagerBuilder::transaction_idle_limit): longer
/// than a transaction should idle between two statements.
pub(crate) const IDLE_LIMIT: Duration = Duration::from_mins(1);

/// The place where a manager keeps its locks: made from a `PgPool`, `MySqlPool` or `SqlitePool` of sqlx, an
/// `Arc<dyn Store>`, or, by [`into_source`](Source::into_source), a store.
pub struct StoreSource {
    /// For people.
    name: &'static str,
    open: Open,
    /// Whether the manager makes the tables, unless it is told not to.
    pub(crate) makes_tables: bool,
}

type Open = Box<dyn FnOnce(Settings) -> Result<Arc<dyn Store>, LockError> + Send + Sync>;

/// The settings of a manager that are its store's.
#[cfg_attr(
    not(all(feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "no store reads all")
)]
pub(crate) struct Settings {
    pub(crate) table: TableName,
    pub(crate) idle_limit: Option<Duration>,
    pub(crate) any_server: bool,
}

impl StoreSource {
    /// `open` makes the store, and opens no connection yet.
    pub(super) fn new(
        name: &'static str,
        open: impl FnOnce(Settings) -> Result<Arc<dyn Store>, LockError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name,
            open: Box::new(open),
            makes_tables: false,
        }
    }

    /// Makes the store without a manager, as a shard of a `dblock_sharded::ShardedStore`. Its settings
    /// are the defaults of [`LockManagerBuilder`](crate::LockManagerBuilder), except for the name of its
    /// `table`. It opens no connection yet.
    ///
    /// ```no_run
    /// use dblock::StoreSource;
    /// # #[cfg(feature = "postgres")]
    /// # fn open(pool: &sqlx::PgPool) -> Result<(), dblock::LockError> {
    /// let store = StoreSource::from(pool).into_store("distributed_lock")?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a table name that is not allowed, and for a SQLite database in memory.
    pub fn into_store(self, table: &str) -> Result<Arc<dyn Store>, LockError> {
        let table = TableName::parse(table).map_err(LockError::invalid)?;
        self.open(Settings {
            table,
            idle_limit: Some(IDLE_LIMIT),
            any_server: false,
        })
    }

    pub(crate) fn open(self, settings: Settings) -> Result<Arc<dyn Store>, LockError> {
        (self.open)(settings)
    }
}

impl fmt::Debug for StoreSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSource({})", self.name)
    }
}

impl From<Arc<dyn Store>> for StoreSource {
    fn from(store: Arc<dyn Store>) -> Self {
        Self::new("store", |_| Ok(store))
    }
}

/// What [`LockManager::builder`](crate::LockManager::builder) takes: a [`Store`] by value, or anything that is
/// `Into<StoreSource>`, such as a pool. `M` only tells the two apart, and the compiler finds it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a place that keeps locks",
    label = "expected a pool or a store",
    note = "a pool of sqlx needs the database's feature of dblock: `postgres`, `mysql` or `sqlite`",
    note = "a store of your own implements `dblock::store::Store`; several managers share it as `Arc<dyn Store>`"
)]
pub trait Source<M: ?Sized> {
    /// The place as one type, for a program that chooses between several.
    fn into_source(self) -> StoreSource;
}

impl<S: Into<StoreSource>> Source<StoreSource> for S {
    fn into_source(self) -> StoreSource {
        self.into()
    }
}

impl<S: Store> Source<dyn Store> for S {
    fn into_source(self) -> StoreSource {
        (Arc::new(self) as Arc<dyn Store>).into()
    }
}
