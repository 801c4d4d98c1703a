//! Locks that end with a transaction.

use std::pin::pin;
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join;
use sqlx::{Pool, Transaction};
use tokio::time::timeout;
use tracing::Instrument as _;

use super::acquire::{Began, Caller, recorded};
use super::{LockBuilder, LockManager};
use crate::Key;
use crate::LockError;
use crate::LockOptions;
use crate::body;
use crate::engine::{Entered, Hold, STORE_TIMEOUT, TurnToTake};
use crate::fence::{self, Ends, FenceConnection};
use crate::store::fence::{FenceSource, NotTaken, Take, Took, TransactionId};
use crate::store::{StoreError, StoreErrorKind};
use crate::transaction::{LockedTransaction, begin_with};
use dblock_core::Wait;
use dblock_core::machine::call::Takes;

/// How long a call keeps the key while it waits for a connection.
const BEGINNING: Duration = Duration::from_secs(5);

/// How long a caller keeps others of its process waiting while it waits for a connection to take the key with. Then it
/// waits for a lease.
const CONNECTING: Duration = Duration::from_millis(50);

/// How long a take may last.
const TAKING: Duration = Duration::from_millis(2500);

const ONE_KEY: &str = "`transaction` takes one key; to end several with a transaction, take them with `acquire`, begin the \
                       transaction with `dblock::begin`, and call the guard's `release_in` in it";

impl LockBuilder<'_> {
    /// Begins a transaction on `pool` under the lock, runs `body` in it, and commits. Others enter after the
    /// commit and never before, and nothing is committed when the lock was lost.
    ///
    /// On PostgreSQL, MySQL and MariaDB the transaction itself takes a free key, in one round trip and without a
    /// lease: for however long it is open, no ttl runs. Elsewhere, where the key is not free, where the
    /// pool has no connection within 50 ms, and on MySQL and MariaDB where the key is new, the lock is acquired first, which costs a
    /// commit, and calls that wait for each other in one process hand it over. It then is a lease as any other, which is
    /// renewed while the body runs and checked right before the commit; or the transaction writes its release before
    /// the body, and keeps the key from there on.
    ///
    /// While the call waits for the lock it keeps no connection of the pool. Then the transaction begins within
    /// what is left of `wait`, or within a second if that is more, and gives the key to others after each five: a pool without a free connection must not
    /// keep the key. When the body returns
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
        let Opened {
            transaction,
            ends,
            hold,
        } = locks.open(&key, &options, pool).await?;
        let (lent, mut back) = LockedTransaction::new(transaction);
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
                match (transaction.rollback().await, ends) {
                    (Ok(()), Ends::Taken(_)) => hold.transaction_over(),
                    (rolled_back, _) => {
                        // A connection that cannot roll back is closed. That rolls back too.
                        if let Err(error) = rolled_back {
                            tracing::debug!(key = %hold.lease().key().typed(), %error, "the rollback failed");
                        }
                        body::leave(vec![hold], false).await;
                    }
                }
                return Err(error);
            }
        };
        let pool = pool_id(pool);
        match ends {
            Ends::Taken(id) => fence::commit(&hold, transaction, Some(&id), pool).await?,
            Ends::AtOnce(id) => fence::commit(&hold, transaction, id.as_ref(), pool).await?,
            Ends::AtTheEnd => {
                let id = fence::keep(from_ref(&hold), &mut transaction).await?;
                fence::commit(&hold, transaction, id.as_ref(), pool).await?;
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
struct Opened<DB: sqlx::Database> {
    transaction: Transaction<'static, DB>,
    ends: Ends,
    hold: Hold,
}

/// What a try to take a key came to.
enum Tried {
    Took {
        fence_token: i64,
        transaction: TransactionId,
    },
    Nothing {
        /// The transaction has the row locked, and must end.
        is_locked: bool,
        /// Another try is of no use before this has passed.
        no_turns_for: Duration,
    },
}

fn begin_anew(key: &Key, message: &str) -> LockError {
    LockError::store_of(key, StoreError::new(StoreErrorKind::Conflict, message))
}

fn not_answered(key: &Key) -> LockError {
    begin_anew(
        key,
        "the database has not answered in time: roll the transaction back",
    )
}

/// Tells a pool from the others.
fn pool_id<DB: sqlx::Database>(pool: &Pool<DB>) -> usize {
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
                    Entered::Turn(turn) => match self.take(key, turn, began, pool).await? {
                        Ok(opened) => return Ok(opened),
                        Err(hold) => hold,
                    },
                };
                if let Some(opened) = self.open_under(hold, options, began, pool).await? {
                    return Ok(opened);
                }
            }
        };
        let span = self.span(&key.typed(), options);
        let opened = opens.instrument(span.clone()).await;
        recorded(&span, opened, |opened| opened.hold.lease())
    }

    /// Whether a transaction of our own takes the key itself.
    fn takes(&self, key: &Key) -> Takes {
        match self.shared.engine.source_to_take(key) {
            None => Takes::No,
            Some(source) if source.dialect.by_lease(source).is_some() => Takes::Alone,
            Some(_) => Takes::First,
        }
    }

    /// Begins a transaction under a lock that was acquired before. A call that waits for the pool keeps the key
    /// meanwhile, but not for longer than five seconds: `None` when it has to acquire the lock again.
    async fn open_under<DB>(
        &self,
        hold: Hold,
        options: &LockOptions,
        began: Began,
        pool: &Pool<DB>,
    ) -> Result<Option<Opened<DB>>, LockError>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
    {
        let engine = &self.shared.engine;
        let in_transaction = fence::by_lease(&hold, options, pool_id(pool));
        let begins = match &in_transaction {
            Some(in_transaction) => in_transaction.begins(engine),
            None => fence::begins_with(&hold).map(str::to_owned),
        };
        let left = began.left(engine).unwrap_or(BEGINNING);
        let limit = left.clamp(Duration::from_secs(1), BEGINNING);
        let opened = engine.within(Some(limit), begin_with(pool, begins)).await;
        if opened.is_none() && began.left(engine).is_none_or(|left| !left.is_zero()) {
            drop(in_transaction);
            body::leave(vec![hold], true).await;
            return Ok(None);
        }
        let opened = opened.unwrap_or(Err(sqlx::Error::PoolTimedOut));
        let mut transaction =
            opened.map_err(|error| LockError::store_of(hold.lease().key(), fence::begin_failed(error)))?;
        let ends = match in_transaction {
            Some(in_transaction) => Ends::ByLease(in_transaction),
            None if fence::is_kept_at_once(&hold) => {
                Ends::AtOnce(self.keep_at_once(&hold, began, &mut transaction).await?)
            }
            None => Ends::AtTheEnd,
        };
        Ok(Some(Opened {
            transaction,
            ends,
            hold,
        }))
    }

    /// How long a take may last: it counts against `wait`.
    fn time_to_take(&self, began: Began) -> Duration {
        let left = began.left(&self.shared.engine).unwrap_or(TAKING);
        left.clamp(CONNECTING, TAKING)
    }

    /// Takes the key in a transaction of our own; where that takes nothing, waits for a lease.
    async fn take<DB>(
        &self,
        key: &Key,
        turn: TurnToTake,
        began: Began,
        pool: &Pool<DB>,
    ) -> Result<Result<Opened<DB>, Hold>, LockError>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
    {
        let Some(source) = self.shared.engine.source_to_take(key) else {
            return turn.for_lease(Duration::ZERO).await.map(Err);
        };
        let begins = async {
            let mut begins = pin!(begin_with(pool, source.dialect.begins_with().map(str::to_owned)));
            let mut left = self.time_to_take(began);
            loop {
                match timeout(CONNECTING, &mut begins).await {
                    Ok(opened) => break opened.map_err(Some),
                    Err(_) if turn.others_wait() || left <= CONNECTING => break Err(None),
                    Err(_) => left -= CONNECTING,
                }
            }
        };
        let makes_row = async {
            if source.new_keys.load(Ordering::Relaxed) {
                // Where this fails, the take finds no row.
                let makes = self.shared.engine.make_free_row(key);
                let made = timeout(self.time_to_take(began), makes).await;
                source
                    .new_keys
                    .store(matches!(made, Ok(Ok(true))), Ordering::Relaxed);
            }
            Ok(())
        };
        let (mut transaction, ()) = match try_join(begins, makes_row).await {
            Ok(opened) => opened,
            Err(None) => return turn.for_lease(Duration::ZERO).await.map(Err),
            Err(Some(error)) => return Err(LockError::store_of(key, fence::begin_failed(error))),
        };
        let takes = self.take_in(key, source, &turn, true, &mut transaction);
        let Ok(tried) = timeout(self.time_to_take(began), takes).await else {
            // Its rollback is sent when the server answers.
            drop(transaction);
            return turn.for_lease(Duration::ZERO).await.map(Err);
        };
        let (turn, no_turns_for) = match tried {
            Ok(Tried::Took {
                fence_token,
                transaction: id,
            }) => match turn.taken(fence_token) {
                Ok(hold) => {
                    return Ok(Ok(Opened {
                        transaction,
                        ends: Ends::Taken(id),
                        hold,
                    }));
                }
                Err(late) => (late, Duration::ZERO),
            },
            Ok(Tried::Nothing { no_turns_for, .. }) => (turn, no_turns_for),
            Err(error) if error.is_retryable() => (turn, Duration::ZERO),
            Err(error) => return Err(error),
        };
        // Nothing waits with a transaction open.
        let rolled_back = timeout(self.time_to_take(began), transaction.rollback()).await;
        if let Ok(Err(error)) = rolled_back {
            tracing::debug!(key = %key.typed(), %error, "the rollback failed");
        }
        turn.for_lease(no_turns_for).await.map(Err)
    }

    /// Takes the key in a transaction, of our `own` or of the caller's.
    async fn take_in(
        &self,
        key: &Key,
        source: &FenceSource,
        turn: &TurnToTake,
        own: bool,
        transaction: &mut dyn FenceConnection,
    ) -> Result<Tried, LockError> {
        let failed = |error| LockError::store_of(key, error);
        let dialect = source.dialect_in(transaction).map_err(failed)?;
        let take = Take {
            source,
            key,
            lease_id: turn.lease_id(),
            owner: turn.call().owner,
            holder: &turn.call().holder,
            own,
        };
        let nothing = |is_locked, no_turns_for| Tried::Nothing {
            is_locked,
            no_turns_for,
        };
        let mut took = dialect.take(transaction, &take).await.map_err(failed)?;
        if took == Took::Nothing(NotTaken::Absent) && dialect.makes_free_rows() {
            source.new_keys.store(true, Ordering::Relaxed);
            self.shared.engine.make_free_row(key).await?;
            took = dialect.take(transaction, &take).await.map_err(failed)?;
        }
        Ok(match took {
            Took::Taken {
                fence_token,
                transaction: id,
                identity,
            } => {
                self.check_identity(key, source, transaction, identity).await?;
                Tried::Took {
                    fence_token,
                    transaction: id,
                }
            }
            Took::MustEnd => nothing(true, Duration::ZERO),
            Took::Nothing(NotTaken::Ahead(by)) => nothing(false, by),
            Took::Nothing(NotTaken::Absent | NotTaken::Held | NotTaken::Skipped) => {
                nothing(false, Duration::ZERO)
            }
        })
    }

    /// A lease in another table would not have kept the transaction from its take.
    async fn check_identity(
        &self,
        key: &Key,
        source: &FenceSource,
        transaction: &mut dyn FenceConnection,
        mut identity: String,
    ) -> Result<(), LockError> {
        let failed = |error| LockError::store_of(key, error);
        let mut known = source.identity.is(&identity);
        // The server may have been restarted. Where the identity is a session of the store's, that may have ended, and
        // so may the next one: only of one that was read twice it is certain.
        let (mut reads, mut former) = (0..5, None);
        while known != Some(true) && reads.next().is_some() {
            fence::committed_row(&self.shared.engine, key, STORE_TIMEOUT).await?;
            let anew = source.dialect.identity(transaction, source, identity);
            identity = anew.await.map_err(failed)?;
            known = source.identity.is(&identity);
            let read = source.identity.known();
            if known == Some(false) && former == read {
                break;
            }
            // Not certain yet.
            known = known.filter(|is| *is);
            former = read;
        }
        let (kind, message) = match known {
            // Behind a pooler that was found just now nobody knows which server the store's own sessions are on.
            Some(true) if source.takes() => return Ok(()),
            Some(false) => (
                StoreErrorKind::Unsupported,
                "the transaction is on another server, database or schema than the lock: roll it back, and begin it on the \
                 lock's own, or point the manager there",
            ),
            _ => (
                StoreErrorKind::Conflict,
                "the lock's own database has just been connected anew: roll the transaction back and begin it anew",
            ),
        };
        Err(LockError::store_of(key, StoreError::new(kind, message)))
    }

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
        let left = began.left(&self.shared.engine).unwrap_or(TAKING);
        let again = timeout(left.max(TAKING), self.enter_again(&key, options, began, tx)).await;
        let hold = if let Some(hold) = again.unwrap_or_else(|_| Err(not_answered(&key)))? {
            hold
        } else {
            let source = self.shared.engine.source_to_take(&key);
            let takes = match source {
                Some(source) if source.dialect.takes_in_theirs() => Takes::First,
                _ => Takes::No,
            };
            let enters = async {
                match self.enter_or_turn(&key, options, began, takes).await? {
                    Entered::Hold(hold) => Ok((hold, false)),
                    Entered::Turn(turn) => self.take_in_theirs(&key, turn, began, tx).await,
                }
            };
            let span = self.span(&key.typed(), options);
            let entered = enters.instrument(span.clone()).await;
            let (hold, is_taken) = recorded(&span, entered, |(hold, _)| hold.lease())?;
            if is_taken {
                return Ok(hold);
            }
            hold
        };
        if fence::is_kept_at_once(&hold) {
            self.keep_at_once(&hold, began, tx).await?;
        }
        Ok(hold)
    }

    /// As [`fence::keep_at_once`], in bounded time: the connection may be dead, and nobody have noticed.
    async fn keep_at_once(
        &self,
        hold: &Hold,
        began: Began,
        tx: &mut dyn FenceConnection,
    ) -> Result<Option<TransactionId>, LockError> {
        let left = began.left(&self.shared.engine).unwrap_or(TAKING);
        let kept = timeout(left.max(TAKING), fence::keep_at_once(hold, tx)).await;
        kept.unwrap_or_else(|_| Err(not_answered(hold.lease().key())))
    }

    /// Takes the key in a transaction of the caller's; where that takes nothing, waits for a lease. Returns whether
    /// the key was taken.
    async fn take_in_theirs(
        &self,
        key: &Key,
        turn: TurnToTake,
        began: Began,
        tx: &mut dyn FenceConnection,
    ) -> Result<(Hold, bool), LockError> {
        let begin_anew = |message| begin_anew(key, message);
        let Some(source) = self.shared.engine.source_to_take(key) else {
            return Ok((turn.for_lease(Duration::ZERO).await?, false));
        };
        let taken = timeout(
            self.time_to_take(began),
            self.take_in(key, source, &turn, false, tx),
        )
        .await;
        match taken.unwrap_or_else(|_| Err(not_answered(key))) {
            Ok(Tried::Took { fence_token, .. }) => match turn.taken(fence_token) {
                Ok(hold) => Ok((hold, true)),
                Err(_) => Err(begin_anew(
                    "the transaction has taken the key too late: roll it back and begin it anew",
                )),
            },
            Ok(Tried::Nothing {
                is_locked: false,
                no_turns_for,
            }) => Ok((turn.for_lease(no_turns_for).await?, false)),
            Ok(Tried::Nothing { is_locked: true, .. }) => Err(begin_anew(
                "the lock was acquired by another owner in this moment: roll the transaction back and begin it anew",
            )),
            Err(error) => Err(error),
        }
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
        let lease_id = left.lease_id;
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
