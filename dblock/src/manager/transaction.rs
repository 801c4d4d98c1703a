//! Locks that end with a transaction.

use std::io;
use std::pin::pin;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Connection as _, Pool, Transaction};
use tokio::time::timeout;
use tracing::Instrument as _;

use super::acquire::{Began, recorded};
use super::take::CONNECTING;
use super::{LockBuilder, LockManager};
use crate::Key;
use crate::LockError;
use crate::LockOptions;
use crate::body;
use crate::engine::{Entered, Hold};
use crate::fence::{self, Ends, FenceConnection, InTransaction, STATEMENT_TIMEOUT};
use crate::store::fence::{Marking, PoolId};
use crate::transaction::{LockedTransaction, begin_on, connection_of};

/// How long a call keeps the key while it waits for a connection.
const CONNECTING_UNDER_LOCK: Duration = Duration::from_secs(5);

const ONE_KEY: &str = "`transaction` takes one key; to end several with a transaction, take them with `acquire`, begin the \
                       transaction with `dblock::begin`, and call the guard's `release_in` in it";

impl LockBuilder<'_> {
    /// Begins a transaction on `pool` under the lock, runs `body` in it, and commits. Others enter after the
    /// commit and never before, and nothing is committed when the lock was lost.
    ///
    /// On PostgreSQL, MySQL and MariaDB the transaction itself takes a free key, in one round trip and without a
    /// lease: for however long it is open, no ttl runs. The lock is acquired first, which costs a commit, on SQLite;
    /// where the key is held, or its owner has not released it; where others of this process wait for it, or do so while
    /// the pool has no connection for 50 ms; and on MySQL and MariaDB where the key is new. Then calls that wait for each
    /// other in one process hand the lock over. It is a lease as any other, which is
    /// renewed while the body runs and checked right before the commit; or the transaction writes its release before
    /// the body, and keeps the key from there on.
    ///
    /// While the call waits for the lock it keeps no connection of the pool. A call that has the lock waits for a
    /// connection within what is left of `wait`, or within a second if that is more. After five seconds it gives the key
    /// to others, and goes on with its place in the pool's queue. Beyond `wait` a call takes 2.5 seconds for each
    /// statement of its own that the database does not answer, five for the manager's own look at a lock that the
    /// transaction does not see, 30 for the commit, and three for the release. When the body returns
    /// an error or panics, or the future is dropped, the transaction is rolled back and the lock is released.
    /// A nested call with the same key re-enters. It must have ended before the body has: a guard that outlives
    /// the body fails the call.
    ///
    /// `pool` must be of the database that keeps the lock. On MySQL and MariaDB the transaction begins with the savepoint
    /// `dblock`, which the body must leave alone. On SQLite the last statement before the commit frees the lock, because from there
    /// on the transaction keeps every other writer out. So the lease is renewed there until the body writes;
    /// from then on the body has at most one ttl.
    ///
    /// # Errors
    /// The error of `body`, and as errors of the lock:
    ///
    /// - those of [`acquire`](Self::acquire), and [`LockError::Invalid`] for several keys;
    /// - [`LockError::Invalid`] for options with `hold_min`, and when the body has not dropped its
    ///   transaction: then nothing is committed, and a transaction that keeps the key does so until it is dropped;
    /// - [`LockError::Lost`] when the lease ended before the transaction kept it, or `max_hold` is over;
    /// - [`LockError::Store`] when the transaction cannot begin or commit, or is not on the lock's database, or
    ///   when the lease ran out before the body began because the database did not answer.
    ///   Of the kind [`StoreErrorKind::Conflict`], such as a deadlock or a serialization failure, nothing of
    ///   the transaction stands, and the whole call may be repeated. Of another kind some of it may stand:
    ///   the commit was never answered, or the body has ended the transaction, on MySQL and MariaDB by an error that it
    ///   swallowed, too.
    ///
    /// # Cancel safety
    /// Dropping the future rolls the transaction back and releases the lock in the background. If it is
    /// dropped during the commit, nobody knows whether the commit succeeded; the key becomes free in both
    /// cases.
    ///
    /// # Panics
    /// If `body` panics, and outside of a tokio runtime.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")]
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockError, LockManager};
    ///
    /// #[derive(Debug)]
    /// enum OrderError {
    ///     Lock(LockError),
    ///     Database(sqlx::Error),
    /// }
    /// # impl From<LockError> for OrderError {
    /// #     fn from(error: LockError) -> Self { Self::Lock(error) }
    /// # }
    /// # impl From<sqlx::Error> for OrderError {
    /// #     fn from(error: sqlx::Error) -> Self { Self::Database(error) }
    /// # }
    ///
    /// # let file = std::env::temp_dir().join(format!("dblock-doc-transaction-{}.db", std::process::id()));
    /// # let url = format!("sqlite://{}?mode=rwc", file.display());
    /// let pool = sqlx::SqlitePool::connect(&url).await?;
    /// # sqlx::query("CREATE TABLE orders (id INTEGER, paid INTEGER)").execute(&pool).await?;
    /// let locks = LockManager::builder(&pool).auto_migrate(true).build().await?;
    /// let order = locks.lock("order:42").wait(Duration::from_secs(5));
    /// let paid = order.transaction(&pool, async |mut tx| {
    ///     let update = sqlx::query("UPDATE orders SET paid = 1 WHERE id = 42 AND paid = 0");
    ///     Ok::<_, OrderError>(update.execute(&mut **tx).await?.rows_affected())
    /// });
    /// println!("{} orders paid", paid.await?);
    /// # std::fs::remove_file(file).unwrap();
    /// # Ok::<_, OrderError>(()) }).unwrap();
    /// ```
    ///
    /// [`StoreErrorKind::Conflict`]: crate::store::StoreErrorKind::Conflict
    pub async fn transaction<DB, T, E>(
        self,
        pool: &Pool<DB>,
        body: impl AsyncFnOnce(LockedTransaction<DB>) -> Result<T, E>,
    ) -> Result<T, E>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
        E: From<LockError>,
    {
        let Self { locks, keys, options } = self;
        fence::check_options(&options)?;
        let key = Self::one_key(keys, ONE_KEY)?;
        let Opened {
            transaction,
            ends,
            hold,
        } = locks.open(&key, &options, pool).await?;
        let (lent, mut back) = LockedTransaction::new(transaction, ends.mark());
        // Declared after the transaction, so that it is dropped before that is rolled back.
        let ends_others = hold.ends_others();
        let ended = body::in_transaction(&hold, body(lent)).await;
        let ended = ended.map_err(E::from).flatten();
        let Ok(mut transaction) = back.try_recv() else {
            // The body's own error says more than ours.
            let message = "the body of a transaction must drop it: it was moved to somewhere else";
            return ended.and_then(|_| Err(LockError::invalid(message).into()));
        };
        let value = match ended {
            Ok(value) => value,
            Err(error) => {
                drop(ends_others);
                // A connection that cannot roll back is closed. That rolls back too.
                let rolled_back = rolled_back(hold.lease().key(), transaction, STATEMENT_TIMEOUT).await;
                match (rolled_back, ends) {
                    (true, Ends::Taken(_)) => hold.transaction_over(),
                    _ => drop(body::leave(vec![hold], false).await),
                }
                return Err(error);
            }
        };
        let pool = pool_id(pool);
        match ends {
            Ends::Taken(id) | Ends::AtOnce(id) => fence::commit(&hold, transaction, &id, pool).await?,
            Ends::AtTheEnd { outermost } => {
                let id = fence::keep_at_the_end(&hold, outermost, &mut transaction).await?;
                fence::commit(&hold, transaction, &id, pool).await?;
            }
            Ends::ByLease(_in_transaction) => fence::commit_by_lease(&hold, transaction, pool).await?,
        }
        drop(ends_others);
        if hold.lease().is_kept_in_transaction() {
            hold.transaction_over();
        } else {
            body::leave(vec![hold], true).await;
        }
        Ok(value)
    }
}

/// A transaction that has begun under a lock. The transaction is dropped before the hold is.
pub(super) struct Opened<DB: sqlx::Database> {
    pub(super) transaction: Transaction<'static, DB>,
    pub(super) ends: Ends,
    pub(super) hold: Hold,
}

/// Whether the transaction was rolled back in time.
pub(super) async fn rolled_back<DB: sqlx::Database>(
    key: &Key,
    transaction: Transaction<'static, DB>,
    limit: Duration,
) -> bool {
    // The rollback of one that is over sends nothing.
    let was_open = transaction.is_in_transaction();
    match timeout(limit, transaction.rollback()).await {
        Ok(Ok(())) => return was_open,
        Ok(Err(error)) => tracing::debug!(key = %key.typed(), %error, "the rollback failed"),
        Err(_) => tracing::debug!(key = %key.typed(), "the rollback was not answered"),
    }
    false
}

/// Tells a pool from the others.
fn pool_id<DB: sqlx::Database>(pool: &Pool<DB>) -> PoolId {
    std::ptr::from_ref(pool.options()).addr()
}

impl LockManager {
    /// Begins a transaction that takes the key, or that keeps a lock which was acquired before.
    async fn open<DB>(
        &self,
        key: &Key,
        options: &LockOptions,
        pool: &Pool<DB>,
    ) -> Result<Opened<DB>, LockError>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
    {
        let began = self.begins(options);
        self.check(options)?;
        let opens = async {
            loop {
                let takes = self.takes(key);
                let hold = match self.enter_or_turn(key, options, began, takes).await? {
                    Entered::Hold(hold) => hold,
                    Entered::Turn(turn) => {
                        let took = self.take(key, turn, began, pool).await;
                        let waited = || began.waited(&self.shared.engine);
                        match took.map_err(|error| error.after(waited()))? {
                            Ok(opened) => return Ok(opened),
                            Err(hold) => hold,
                        }
                    }
                };
                if let Some((hold, connection)) = self.connect_under(hold, options, began, pool).await? {
                    return Self::open_under(hold, options, connection, pool_id(pool)).await;
                }
            }
        };
        let span = self.span(&key.typed(), options);
        let opened = opens.instrument(span.clone()).await;
        recorded(&span, opened, |opened| opened.hold.lease())
    }

    /// Gets a connection for a hold. The pool keeps the key from others for a while only; a connection that comes later
    /// is kept from others for a moment only. `None`: the call begins anew.
    async fn connect_under<DB: sqlx::Database>(
        &self,
        hold: Hold,
        options: &LockOptions,
        began: Began,
        pool: &Pool<DB>,
    ) -> Result<Option<(Hold, PoolConnection<DB>)>, LockError> {
        let engine = &self.shared.engine;
        let key = hold.lease().key().clone();
        let failed = |error| LockError::store_of(&key, fence::begin_failed(error));
        let mut connects = pin!(connection_of(pool));
        let left = began.left(engine).unwrap_or(CONNECTING_UNDER_LOCK);
        let limit = left.clamp(Duration::from_secs(1), CONNECTING_UNDER_LOCK);
        if let Ok(connected) = timeout(limit, &mut connects).await {
            return Ok(Some((hold, connected.map_err(failed)?)));
        }
        body::leave(vec![hold], true).await;
        // It keeps its place among those that wait for the pool.
        let connected = engine.within(began.left(engine), connects).await;
        let connection = connected
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(failed)?;
        let enters = self.enter(&key, options, began, None);
        match timeout(CONNECTING, enters).await {
            Ok(hold) => Ok(Some((hold?, connection))),
            Err(_) => Ok(None),
        }
    }

    /// Begins a transaction under a lock that was acquired before.
    async fn open_under<DB>(
        hold: Hold,
        options: &LockOptions,
        connection: PoolConnection<DB>,
        pool: PoolId,
    ) -> Result<Opened<DB>, LockError>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
    {
        let in_transaction = fence::by_lease(&hold, options, pool);
        let begins = in_transaction.as_ref().and_then(InTransaction::begins);
        let begun = timeout(STATEMENT_TIMEOUT, begin_on(connection, begins)).await;
        let begun = begun.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
        let mut transaction =
            begun.map_err(|error| LockError::store_of(hold.lease().key(), fence::begin_failed(error)))?;
        let ends = match in_transaction {
            Some(in_transaction) => Ends::ByLease(in_transaction),
            None if fence::is_kept_at_once(&hold) => {
                let mut marked = Marking::new(&mut transaction, fence::marks_with(&hold));
                Ends::AtOnce(fence::keep_at_once(&hold, &mut marked).await?)
            }
            None => Ends::AtTheEnd {
                outermost: hold.lease().hold_count() <= 1,
            },
        };
        Ok(Opened {
            transaction,
            ends,
            hold,
        })
    }
}
