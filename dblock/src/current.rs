//! The lock that the running code runs under, and sharing it with another task.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use uuid::Uuid;

use crate::LockError;
use crate::body;
use crate::chain::Link;
use crate::engine::{Hold, Lease};

/// The innermost lock that the running code runs under; `None` without one.
///
/// A spawned task does not run under its parent's locks, unless it was wrapped by [`inherit`].
///
/// ```
/// use dblock::{LockManager, current};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// assert!(current().is_none());
/// let body = async {
///     let lock = current().expect("under a lock");
///     assert_eq!(lock.key(), "order:42");
///     lock.fence_token()
/// };
/// let token = locks.lock("order:42").run(body).await?;
/// assert!(token > 0);
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
pub fn current() -> Option<CurrentLock> {
    CurrentLock::all_of(Link::current()?).next()
}

/// The locks that the running code runs under, from the innermost outwards. Empty if there are none.
///
/// The list has one entry for each call that has entered, so a key that was re-entered is there more than
/// once.
///
/// ```
/// use dblock::{LockManager, current_locks};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let inner = locks.lock("order:42").run(async {
///     let keys: Vec<String> = current_locks().iter().map(|lock| lock.key().to_owned()).collect();
///     assert_eq!(keys, ["order:42", "customer:7"]);
/// });
/// locks.lock("customer:7").run(inner).await??;
/// assert!(current_locks().is_empty());
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
pub fn current_locks() -> Vec<CurrentLock> {
    let innermost = Link::current();
    let links = std::iter::successors(innermost, Link::around);
    links.flat_map(CurrentLock::all_of).collect()
}

/// A lock as its body sees it. It does not keep the lock held: after the body it only says what was.
///
/// Locks that were taken together, by `keys = […]` or by [`lock`](crate::LockManager::lock) with several keys, end
/// together: the time left, the loss, the revocation and the fence check of one are those of all.
///
/// ```
/// use std::time::Duration;
/// use dblock::{LockError, LockManager, OnLost, current};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # async fn next_step() {}
/// let locks = LockManager::connect("memory:").await?;
/// let body = async {
///     let lock = current().expect("under a lock");
///     tokio::select! {
///         error = lock.lost() => return Err(error),
///         () = lock.revoked() => println!("somebody wants {} back", lock.key()),
///         () = next_step() => println!("{:?} left", lock.remaining()),
///     }
///     Ok(())
/// };
/// locks.lock("order:42").on_lost(OnLost::Signal).run(body).await?
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct CurrentLock {
    link: Link,
    /// Its place among the leases that were taken together.
    at: usize,
}

impl CurrentLock {
    /// The locks that were taken together, from the innermost outwards.
    fn all_of(link: Link) -> impl Iterator<Item = Self> {
        let all = 0..link.leases().len();
        all.rev().map(move |at| Self {
            link: link.clone(),
            at,
        })
    }

    fn lease(&self) -> &Lease {
        &self.link.leases()[self.at]
    }

    /// The key, as it was typed.
    pub fn key(&self) -> &str {
        self.lease().key().typed()
    }

    /// The key with the manager's namespace before it: what the store has, and what is told apart from the
    /// keys of other namespaces, such as by a service that is given it.
    pub fn full_key(&self) -> &str {
        self.lease().key().as_str()
    }

    /// The owner: the identity of the call chain.
    pub fn owner(&self) -> Uuid {
        self.lease().owner()
    }

    /// The token of this owner: larger than every token given for the key before. Store it beside what you
    /// write, and refuse smaller ones.
    pub fn fence_token(&self) -> i64 {
        self.lease().fence_token()
    }

    /// Time left until the holder must stop, as in [`LockGuard::remaining`](crate::LockGuard::remaining).
    pub fn remaining(&self) -> Duration {
        crate::guard::remaining(self.link.leases())
    }

    /// Whether the lease, or one of those that were taken together, has been lost.
    pub fn is_lost(&self) -> bool {
        crate::guard::check(self.link.leases()).is_err()
    }

    /// How many holds this owner has on the key: one for the outermost entry, and one for each re-entry that
    /// has not ended. 0 once the lease is lost. Counted in memory, without asking the store.
    pub fn hold_count(&self) -> u32 {
        self.lease().hold_count()
    }

    /// How many call chains are inside the lock, in all processes together: see
    /// [`LockGuard::inside`](crate::LockGuard::inside).
    ///
    /// # Errors
    /// As for [`LockGuard::inside`](crate::LockGuard::inside).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn inside(&self) -> Result<u32, LockError> {
        crate::guard::inside(self.lease()).await
    }

    /// Completes when the lease is lost, with the [`LockError::Lost`] that says why. With
    /// `on_lost = "signal"` this is how the body learns of the loss.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn lost(&self) -> LockError {
        crate::guard::lost(self.link.leases()).await
    }

    /// Completes when an operator has revoked the lease. Then finish soon: the lease is no longer renewed.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn revoked(&self) {
        crate::guard::revoked(self.link.leases()).await;
    }

    /// Checks in your transaction that this lease is still held, and keeps others out until the transaction
    /// ends: a takeover has to wait for your commit. The transaction may be one of sqlx, or of another
    /// driver: see [`fence`](crate::fence).
    ///
    /// Call it early in the transaction, and commit or roll back before the body returns or the guard is
    /// released: while the transaction is open the lease can be neither renewed nor released. On a bare
    /// connection, outside of a transaction, the protection ends with the statement. The transaction must be
    /// on the database that keeps the lock; on PostgreSQL, name the schema in the builder's `table` if your
    /// pool changes `search_path`. On SQLite this makes the transaction a write transaction, which keeps
    /// every other writer out of the file: keep it short, and never acquire a lock inside it.
    ///
    /// **In the body of [`transaction`](crate::LockBuilder::transaction)** the row may stay unlocked: the call itself
    /// locks it before it commits, and commits nothing when the lease is gone.
    ///
    /// **Savepoints.** Check outside of them: a rollback to a savepoint that was set before the check may let
    /// others take the key while the transaction goes on. PostgreSQL then drops the row's lock. MySQL and
    /// MariaDB do so when nothing was read or written before the savepoint. SQLite keeps others out until the
    /// transaction ends.
    ///
    /// **A host that vanishes** inside the transaction keeps the key busy until the server ends its session.
    /// PostgreSQL ends a transaction that idles for longer than
    /// [`transaction_idle_limit`](crate::LockManagerBuilder::transaction_idle_limit) after the check. MySQL
    /// and MariaDB take up to `wait_timeout` (8 hours), and have no limit for a single transaction: set
    /// `wait_timeout`, or MariaDB's `idle_transaction_timeout`, for the sessions of your pool in
    /// `after_connect`. When only the process dies, its host closes the connections at once.
    ///
    /// # Errors
    /// - [`LockError::Lost`] when the lease is gone: roll back.
    /// - [`LockError::Store`] with [`is_retryable`](LockError::is_retryable) when the snapshot of a
    ///   REPEATABLE READ or stricter transaction is older than the lease or, on PostgreSQL and SQLite, older
    ///   than its last renewal: begin the transaction again.
    /// - [`LockError::Store`] when the database refuses, or the transaction is on another kind of database,
    ///   or the locks are in a store without such transactions (memory, Redis, ZooKeeper, etcd).
    ///
    /// # Cancel safety
    /// The statement runs on your transaction. After dropping the future, roll the transaction back.
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # async fn body(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
    /// // In the body of a lock that is kept in the database of `pool`:
    /// let lock = dblock::current().expect("under a lock");
    /// let mut tx = pool.begin().await?;
    /// lock.verify_in(&mut tx).await?;
    /// sqlx::query("UPDATE orders SET settled = true WHERE id = 42").execute(&mut *tx).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "sql")]
    pub async fn verify_in(
        &self,
        transaction: &mut dyn crate::fence::FenceConnection,
    ) -> Result<(), LockError> {
        crate::fence::verify(self.link.leases(), transaction)
            .await
            .map(drop)
    }

    /// Waits until the lock's row names this owner with its token, and keeps it so until the release. See
    /// [`LockGuard::pin`](crate::LockGuard::pin). Under several keys this is done for all of them.
    ///
    /// # Errors
    /// As for [`LockGuard::pin`](crate::LockGuard::pin), for the first key that has one.
    ///
    /// # Cancel safety
    /// As for [`LockGuard::pin`](crate::LockGuard::pin).
    pub async fn pin(&self) -> Result<(), LockError> {
        for lease in self.link.leases() {
            lease.pin(true).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for CurrentLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::guard::debug("CurrentLock", self.lease(), f)
    }
}

/// Lets another task share the locks that the running code runs under.
///
/// The child has a hold from this call on, before it is spawned. So the locks stay held until the child is
/// done, even when the parent returns first. A lost lease drops the child too, unless its lock was taken with
/// `on_lost = "signal"`. Without a lock the child just runs.
///
/// ```no_run
/// # async fn work() {}
/// # async fn body() {
/// tokio::spawn(dblock::inherit(work()));
/// # }
/// ```
///
/// # Errors
/// The returned future gives [`LockError::Lost`] when one of the leases has ended, or ends before the child
/// does. It gives [`LockError::Invalid`] under a lock that ends with a transaction, because the commit would
/// free it under the child, and a [`LockError::Store`] of the kind `Conflict` while the outcome of a run is being
/// written.
///
/// # Cancel safety
/// Dropping the returned future drops the child and ends its holds.
///
/// # Panics
/// The returned future panics only if the child does.
pub fn inherit<F: Future>(child: F) -> impl Future<Output = Result<F::Output, LockError>> {
    let inherited = Inherited::enter();
    async move {
        let Some(Inherited { link, holds }) = inherited? else {
            return Ok(child.await);
        };
        let leases = holds.iter().map(Hold::lease);
        let ended = body::supervise(leases, link.scope_child(child)).await;
        let returned = matches!(ended, body::Ended::InTime(_));
        for hold in holds {
            // The engine has logged what went wrong; the child is done either way.
            let _ = body::leave(vec![hold], returned).await;
        }
        ended.in_time()
    }
}

/// As [`inherit`], for code that is not async: lets another thread share the locks that the running code runs under.
///
/// The child has a hold from this call on, and runs only if the lease still lives then. A lease that is lost later does not
/// stop it: it can ask [`CurrentLock::is_lost`]. Its holds end with it, and nothing waits for the confirmation of a
/// release.
///
/// The child's calls on its thread run under the lock. Do not wait for a pool such as rayon's in it: the thread may run
/// another job meanwhile, under your lock.
///
/// ```no_run
/// # fn work() {}
/// # async fn body() -> Result<(), Box<dyn std::error::Error>> {
/// tokio::task::spawn_blocking(dblock::inherit_blocking(|| work())).await??;
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`inherit`]. [`LockError::Lost`] comes after the child if the lease ended while it ran.
///
/// # Panics
/// The returned function panics only if the child does.
pub fn inherit_blocking<T>(child: impl FnOnce() -> T) -> impl FnOnce() -> Result<T, LockError> {
    let inherited = Inherited::enter();
    move || {
        let Some(Inherited { link, holds }) = inherited? else {
            return Ok(child());
        };
        if let Some((lease, reason)) = body::loss(&holds) {
            return Err(lease.lost(reason));
        }
        let value = link.run_child(child);
        body::Ended::after(value, body::loss(&holds)).in_time()
    }
}

/// The locks that a child shares with its parent, and its own holds on them.
struct Inherited {
    link: Link,
    holds: Vec<Hold>,
}

impl Inherited {
    /// Enters all locks that the running code runs under; `None` without one.
    fn enter() -> Result<Option<Self>, LockError> {
        let Some(link) = Link::current() else {
            return Ok(None);
        };
        let enter = |lease| {
            let entered = Hold::enter_now(lease);
            // Asked after that: a lock with this hold is kept by no transaction any more.
            #[cfg(feature = "sql")]
            if lease.ends_with_transaction() {
                return Err(LockError::invalid(
                    "a lock that ends with a transaction cannot be shared with another task or thread, because the \
                     commit frees it; await the child in the body, or start it after the commit",
                ));
            }
            entered
        };
        let holds = link.iter().map(enter).collect::<Result<_, _>>()?;
        Ok(Some(Self { link, holds }))
    }
}

#[cfg(test)]
mod tests {
    use crate::{LockManager, current_locks, inherit};

    fn keys() -> Vec<String> {
        current_locks().iter().map(|lock| lock.key().to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_locks_of_a_chain_are_listed_from_the_innermost_outwards() {
        let (one, other) = (LockManager::connect("memory:"), LockManager::connect("memory:"));
        let (one, other) = (one.await.unwrap(), other.await.unwrap());
        let inner = async {
            assert!(tokio::spawn(async { keys().is_empty() }).await.unwrap());
            assert_eq!(
                tokio::spawn(inherit(async { keys() })).await.unwrap().unwrap(),
                keys()
            );
            keys()
        };
        let again = one.lock("a").run(inner);
        let middle = other.lock("b").run(again);
        let found = one.lock("a").run(middle).await.unwrap().unwrap().unwrap();
        assert_eq!(found, ["a", "b", "a"]);
        assert!(keys().is_empty());
    }
}
