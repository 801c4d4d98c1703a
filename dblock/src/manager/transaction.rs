//! Locks that end with a transaction.

use std::slice::from_ref;
use std::time::Duration;

use sqlx::{Pool, Transaction};

use super::acquire::{Began, Caller};
use super::{LockBuilder, LockManager};
use crate::Key;
use crate::LockError;
use crate::LockOptions;
use crate::body;
use crate::engine::{Hold, STORE_TIMEOUT};
use crate::fence::{self, FenceConnection};
use crate::transaction::{LockedTransaction, begin_with};
use dblock_core::Wait;

/// How long a transaction may take to begin where less of `wait` is left.
const BEGINNING: Duration = Duration::from_secs(1);

const ONE_KEY: &str = "`transaction` takes one key; to end several with a transaction, take them with `acquire`, begin the \
                       transaction with `dblock::begin`, and call the guard's `release_in` in it";

impl LockBuilder<'_> {
    /// Takes the lock, begins a transaction on `pool`, runs `body` in it, and commits. The commit
    /// frees the lock in the same instant as it makes the work visible: others enter after it and never
    /// before.
    ///
    /// While the call waits for the lock it keeps no connection of the pool. Then the transaction begins within
    /// what is left of `wait`, or within a second if that is more: a pool without a free connection must not
    /// keep the key. From then on the open transaction
    /// keeps the key, for however long that takes: no ttl runs, and nothing is renewed. When the body returns
    /// an error or panics, or the future is dropped, the transaction is rolled back and the lock is released.
    /// A nested call with the same key re-enters.
    ///
    /// `pool` must be of the database that keeps the lock. The lock adds the acquire before the transaction,
    /// and short statements in it: two on PostgreSQL, three on MySQL and MariaDB, and one on SQLite. It adds
    /// no commit to that of the transaction. On MySQL and MariaDB the transaction begins with the savepoint
    /// `dblock`, which the body must leave alone. On SQLite the last statement before the commit frees the lock, because from there
    /// on the transaction keeps every other writer out. So the lease is renewed there until the body writes;
    /// from then on the body has at most one ttl.
    ///
    /// # Errors
    /// The error of `body`, and as errors of the lock:
    ///
    /// - those of [`acquire`](Self::acquire), and [`LockError::Invalid`] for several keys;
    /// - [`LockError::Invalid`] for options with `hold_min`, and when the body has not dropped its
    ///   transaction: then nothing is committed, and the transaction keeps the key until it is dropped;
    /// - [`LockError::Lost`] when the lease ended before the transaction kept it, or `max_hold` is over;
    /// - [`LockError::Store`] when the transaction cannot begin or commit, or is not on the lock's database, or
    ///   when the lease ran out before the body began because the database did not answer.
    ///   Of the kind [`StoreErrorKind::Conflict`], such as a deadlock or a serialization failure, nothing of
    ///   the transaction stands, and the whole call may be repeated. Of another kind some of it may stand:
    ///   the commit was never answered, or the body has ended the transaction or swallowed an error that
    ///   ended it.
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
        let began = locks.begins(&options);
        let hold = locks.hold_and_begin(&key, &options, began, None).await?;
        let engine = &locks.shared.engine;
        // A call that waits for the pool keeps the key meanwhile.
        let limit = began.left(engine).map(|left| left.max(BEGINNING));
        let begins = begin_with(pool, fence::begins_with(&hold));
        let opened = engine.within(limit, begins).await;
        // Declared after the hold, so that it is dropped before the hold is.
        let mut tx = opened
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(|error| fence::failed(hold.lease(), fence::begin_failed(error)))?;
        let at_once = fence::is_kept_at_once(&hold);
        if at_once {
            fence::keep_at_once(&hold, &mut tx).await?;
        }
        let (lent, mut back) = LockedTransaction::new(tx);
        let ended = body::in_transaction(&hold, body(lent)).await;
        let ended = ended.map_err(E::from).flatten();
        let Ok(mut tx) = back.try_recv() else {
            // The body's own error says more than ours.
            let message = "the body of a transaction must drop it: it was moved to somewhere else";
            return ended.and_then(|_| Err(LockError::invalid(message).into()));
        };
        let value = match ended {
            Ok(value) => value,
            Err(error) => {
                // A connection that cannot roll back is closed. That rolls back too.
                if let Err(error) = tx.rollback().await {
                    tracing::debug!(key = %hold.lease().key().typed(), %error, "the rollback failed");
                }
                body::leave(vec![hold], false).await;
                return Err(error);
            }
        };
        if at_once {
            fence::confirm(&hold, &mut tx).await?;
        } else {
            fence::keep(from_ref(&hold), &mut tx).await?;
        }
        tx.commit()
            .await
            .map_err(|error| fence::commit_failed(&hold, error))?;
        if hold.lease().is_kept_in_transaction() {
            hold.committed();
        } else {
            body::leave(vec![hold], true).await;
        }
        Ok(value)
    }
}

impl LockManager {
    /// Takes the lock for a call that runs in a transaction of its caller's.
    pub(crate) async fn hold_in(
        &self,
        key: &str,
        options: &LockOptions,
        tx: &mut dyn FenceConnection,
    ) -> Result<Hold, LockError> {
        fence::check_options(options)?;
        if options.wait == Wait::Forever {
            return Err(LockError::invalid(
                "a transaction must not wait for ever: two of them could wait for each other for good; give a wait",
            ));
        }
        let began = self.begins(options);
        let key = self.key(key)?;
        let hold = match self.enter_again(&key, options, began, tx).await? {
            Some(hold) => hold,
            None => self.hold_and_begin(&key, options, began, None).await?,
        };
        if fence::is_kept_at_once(&hold) {
            fence::keep_at_once(&hold, tx).await?;
        }
        Ok(hold)
    }

    /// Enters a lock of the call chain, or one that an earlier call in this same transaction has left to it.
    async fn enter_again(
        &self,
        key: &Key,
        options: &LockOptions,
        began: Began,
        tx: &mut dyn FenceConnection,
    ) -> Result<Option<Hold>, LockError> {
        self.check(options)?;
        let engine = &self.shared.engine;
        let caller = Caller::new(self, options, began);
        if let Some(lease) = caller.held(key) {
            // The transaction may lock the row, so that the store cannot confirm. The statement in it checks the
            // lease.
            return Hold::enter_now(lease, engine).map(Some);
        }
        let Some(left) = engine.left_in_transaction(key) else {
            return Ok(None);
        };
        let lease_id = left.0;
        let limit = began.left(engine).unwrap_or(STORE_TIMEOUT);
        if !fence::is_kept_by(engine, key, left, limit, tx).await? {
            return Ok(None);
        }
        let call = caller.call(options.wait, None);
        // It fails when the transaction has ended without its driver's knowledge. The next statement in it
        // fails then.
        Ok(engine.enter_again(key, lease_id, call).await.ok())
    }
}
