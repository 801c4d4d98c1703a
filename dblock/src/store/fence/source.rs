//! The facts that a store knows of its database for the sake of statements in a user's transaction.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use super::{Asked, Dialect, FenceCheck, FenceConnection, FenceStatement};
use crate::Key;
use crate::store::{Store, StoreError, StoreErrorKind};

/// The identity of the lock table, as the store's own sessions have read it last: of which table on which server
/// they speak. A transaction that takes a key must be on the same: it would not see a lease elsewhere.
#[derive(Debug, Clone, Default)]
pub(crate) struct Identity(Arc<Mutex<(Sessions, Option<String>)>>);

/// How many sessions the store has opened. A new one may be on another server than those before.
pub(crate) type Sessions = u64;

impl Identity {
    fn lock(&self) -> MutexGuard<'_, (Sessions, Option<String>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A session was opened: what was read before counts no more.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql")),
        allow(dead_code, reason = "SQLite takes no keys")
    )]
    pub(crate) fn opened(&self) {
        let mut known = self.lock();
        *known = (known.0 + 1, None);
    }

    /// To be asked before the identity is read.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql")),
        allow(dead_code, reason = "SQLite takes no keys")
    )]
    pub(crate) fn sessions(&self) -> Sessions {
        self.lock().0
    }

    /// Notes the identity that was read when so many sessions had been opened.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "mysql")),
        allow(dead_code, reason = "SQLite takes no keys")
    )]
    pub(crate) fn was_read(&self, identity: String, sessions: Sessions) {
        let mut known = self.lock();
        if known.0 == sessions {
            known.1 = Some(identity);
        }
    }

    /// As it was read last.
    pub(crate) fn known(&self) -> Option<String> {
        self.lock().1.clone()
    }

    /// Whether it is this one; `None` when it must be read first.
    pub(crate) fn is(&self, identity: &str) -> Option<bool> {
        self.lock().1.as_deref().map(|known| known == identity)
    }
}

/// The address of a pool's options, which tells it from the others.
pub(crate) type PoolId = usize;

/// What is known of the pools whose transactions end locks: whether a check of a lease may be their last statement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pools(Arc<Mutex<HashMap<PoolId, bool>>>);

impl Pools {
    /// Pools that are no more are forgotten when there are so many. Those that are used are soon known again.
    const MOST: usize = 1000;

    fn lock(&self) -> MutexGuard<'_, HashMap<PoolId, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn may_check_last(&self, pool: PoolId) -> bool {
        self.lock().get(&pool).is_some_and(|may| *may)
    }

    /// A transaction of this pool has ended a lock: it is of the lock's database.
    pub(crate) fn saw_a_lock_end(&self, pool: PoolId) {
        self.note(pool, true);
    }

    /// The last statement of a transaction of this pool could not check the lease, which may have had a newer row than
    /// its snapshot: the next ones lock the row first.
    pub(crate) fn must_lock_first(&self, pool: PoolId) {
        self.note(pool, false);
    }

    fn note(&self, pool: PoolId, may: bool) {
        let mut known = self.lock();
        if known.len() >= Self::MOST && !known.contains_key(&pool) {
            known.clear();
        }
        let noted = known.entry(pool).or_insert(may);
        *noted &= may;
    }
}

/// The database and the tables that a statement in a user's transaction concerns.
#[derive(Debug, Clone)]
pub(crate) struct FenceSource {
    pub(crate) dialect: &'static dyn Dialect,
    pub(crate) table: Arc<str>,
    /// The quoted table of records.
    #[cfg_attr(not(feature = "run_once"), allow(dead_code))]
    pub(crate) record_table: Arc<str>,
    /// How long the server lets the transaction idle after the check.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code))]
    pub(crate) idle_limit: Option<Duration>,
    /// A pooler lends the store's sessions for a transaction at a time. Known from the first connection on.
    pub(crate) pooled: Arc<AtomicBool>,
    /// Transactions can take keys: for MySQL known from the first connection on.
    pub(crate) takes: Arc<AtomicBool>,
    pub(crate) identity: Identity,
    pub(crate) pools: Pools,
    /// The key that a transaction was to take last had no row. Then the next one probably has none either.
    pub(crate) new_keys: Arc<AtomicBool>,
}

impl FenceSource {
    /// That of a part of `store`, if it is a database.
    pub(crate) fn of(store: &dyn Store, part: usize) -> Option<Self> {
        store.transaction_source(part)?.downcast_ref().cloned()
    }

    /// What the database of both says. Refuses a transaction on another kind of database.
    pub(crate) fn dialect_in(
        &self,
        transaction: &dyn FenceConnection,
    ) -> Result<&'static dyn Dialect, StoreError> {
        let (found, kept) = (transaction.database(), self.dialect.database());
        if found == kept {
            return Ok(self.dialect);
        }
        Err(StoreError::new(
            StoreErrorKind::Unsupported,
            format!(
                "the transaction is on {found:?}, but the lock is kept on {kept:?}; a fence check needs a transaction on the \
                 database that keeps the lock"
            ),
        ))
    }

    /// Whether a transaction can take a key itself. Behind a pooler nobody knows which server the store's own
    /// sessions are on.
    pub(crate) fn takes(&self) -> bool {
        self.takes.load(Ordering::Relaxed) && !self.pooled.load(Ordering::Relaxed)
    }

    /// A statement whose `$1` is the first of the values, and so on.
    pub(super) fn statement(&self, sql: &str, values: impl Into<Vec<String>>) -> FenceStatement {
        let statement = FenceStatement::new(self.dialect.database(), sql, values);
        statement.behind_a_pooler(self.pooled.load(Ordering::Relaxed))
    }

    /// The rows of a statement's answer.
    pub(crate) async fn query(
        &self,
        connection: &mut dyn FenceConnection,
        sql: &str,
        values: impl Into<Vec<String>>,
    ) -> Result<Vec<String>, StoreError> {
        let rows = connection.query(&self.statement(sql, values)).await;
        rows.map_err(|error| self.dialect.failed(error))
    }

    /// Runs a statement, and returns whether it wrote a row.
    #[cfg(any(feature = "mysql", feature = "sqlite", feature = "run_once"))]
    pub(crate) async fn writes(
        &self,
        connection: &mut dyn FenceConnection,
        sql: &str,
        values: impl Into<Vec<String>>,
    ) -> Result<bool, StoreError> {
        let written = connection.execute(&self.statement(sql, values)).await;
        Ok(written.map_err(|error| self.dialect.failed(error))? > 0)
    }

    /// The fence check of one lease, for the project's own tests.
    #[cfg(any(feature = "postgres", feature = "mysql", feature = "sqlite"))]
    pub(crate) async fn verify(
        &self,
        connection: &mut dyn FenceConnection,
        key: &Key,
        lease_id: Uuid,
        fence_token: i64,
    ) -> Result<Option<Duration>, StoreError> {
        let check = FenceCheck {
            source: self,
            key,
            lease_id,
            fence_token,
        };
        let asked = self.dialect.verify(connection, &[check]).await?;
        Ok(asked.into_iter().find_map(|asked| match asked {
            Asked::Found((left, _)) => Some(left),
            _ => None,
        }))
    }
}
