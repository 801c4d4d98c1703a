//! A lock taken by hand, without the attribute.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use uuid::Uuid;

use crate::LockError;
use crate::LockOptions;
use crate::body::{self, RELEASE_TIMEOUT};
use crate::chain::Link;
use crate::engine::{Hold, Lease, Unconfirmed};
use dblock_core::rounded;

/// A held lock on one key or on several. Released by [`release`](Self::release), or when dropped.
///
/// A guard may be dropped anywhere. The release then happens in the background, a moment later, and its
/// failure is only logged. If the program ends right after the drop, the row may stay busy until its lease
/// expires.
///
/// A guard is not in the call chain: a call under it with the same key waits for it, or is busy. Use
/// [`enter`](Self::enter) for code that should re-enter.
///
/// Several keys end together: the guard counts as lost as soon as one of its leases is lost. The other leases
/// go on, and are renewed, until the guard is released or dropped.
///
/// ```
/// use std::time::Duration;
/// use dblock::LockManager;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locks = LockManager::connect("memory:").await?;
/// let guard = locks.lock("order:42").wait(Duration::from_secs(5)).acquire().await?;
/// println!("{} is ours with token {}", guard.key(), guard.fence_token());
/// guard.release().await?;
///
/// let guard = locks.lock(["account:7", "account:3"]).acquire().await?;
/// for (key, token) in guard.fence_tokens() {
///     println!("{key} is ours with token {token}");
/// }
/// guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
#[must_use = "dropping the guard releases the lock: bind it to a name, `let guard = …`; `let _ = …` releases it at once"]
pub struct LockGuard {
    holds: Holds,
    /// The index of the key that was given first.
    first: usize,
}

/// The holds of one call. A single hold needs no allocation.
pub(crate) enum Holds {
    One(Hold),
    /// In the order of their keys.
    Several(Vec<Hold>),
}

impl Holds {
    fn as_slice(&self) -> &[Hold] {
        match self {
            Self::One(hold) => std::slice::from_ref(hold),
            Self::Several(holds) => holds,
        }
    }

    pub(crate) fn into_vec(self) -> Vec<Hold> {
        match self {
            Self::One(hold) => vec![hold],
            Self::Several(holds) => holds,
        }
    }
}

impl LockGuard {
    pub(crate) fn new(holds: Holds, first: usize) -> Self {
        Self { holds, first }
    }

    pub(crate) fn into_holds(self) -> Holds {
        self.holds
    }

    fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.holds.as_slice().iter().map(Hold::lease)
    }

    /// The lease on the key that was given first.
    fn lease(&self) -> &Lease {
        self.holds.as_slice()[self.first].lease()
    }

    /// The key, as it was typed; of several keys, the one that was given first.
    pub fn key(&self) -> &str {
        self.lease().key().typed()
    }

    /// The keys, as they were typed: sorted, and each once.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.leases().map(|lease| lease.key().typed())
    }

    /// [`key`](Self::key) with the manager's namespace before it, as the store has it. Give this one to a
    /// service that must tell the keys of several namespaces apart.
    pub fn full_key(&self) -> &str {
        self.lease().key().as_str()
    }

    /// The owner: the identity of the call chain.
    pub fn owner(&self) -> Uuid {
        self.lease().owner()
    }

    /// The token of this owner for [`key`](Self::key): larger than every token given for that key before. A
    /// resource that remembers the largest token it saw can refuse writers whose lease is over.
    ///
    /// Each key has tokens of its own, which say nothing about another key. Of several keys this is the token
    /// of the one that was given first; [`fence_tokens`](Self::fence_tokens) has them all.
    pub fn fence_token(&self) -> i64 {
        self.lease().fence_token()
    }

    /// Each key with the token of its owner, in the order of [`keys`](Self::keys).
    pub fn fence_tokens(&self) -> impl Iterator<Item = (&str, i64)> {
        self.leases()
            .map(|lease| (lease.key().typed(), lease.fence_token()))
    }

    /// Time left until the holder must stop: until the end of the lease, less a margin of a twentieth of the
    /// ttl (at least 50 ms). Of several keys, the first end counts. Zero once the lease is lost. While a
    /// transaction keeps the lock no ttl runs: then this is the rest of `max_hold`, or, without one, a time of
    /// years.
    pub fn remaining(&self) -> Duration {
        remaining(self.leases())
    }

    /// How many holds this owner has on [`key`](Self::key): one for the guard, and one for each re-entry under
    /// it that has not ended. 0 once the lease is lost. Counted in memory, without asking the store.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, current};
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// assert_eq!(guard.hold_count(), 1);
    /// let nested = locks.lock("order:42").run(async { current().map(|lock| lock.hold_count()) });
    /// assert_eq!(guard.enter(nested).await??, Some(2));
    /// assert_eq!(guard.hold_count(), 1);
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub fn hold_count(&self) -> u32 {
        self.lease().hold_count()
    }

    /// How many call chains are inside [`key`](Self::key), in all processes together, as the row counts them: those who share
    /// it, or 1; 0 when nobody holds it any more. It asks the store, as [`admin().get(key)`](crate::Admin::get) does. Others
    /// may come and leave meanwhile. Those who share the lock without a limit enter and leave in the memory of their process,
    /// and the row follows within about 50 ms.
    ///
    /// # Errors
    /// [`LockError::Store`] when the store could not be asked, [`LockError::Shutdown`] after
    /// [`shutdown`](crate::LockManager::shutdown).
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let one = locks.lock("payments").limit(8).acquire().await?;
    /// let other = locks.lock("payments").limit(8).acquire().await?;
    /// assert_eq!(one.inside().await?, 2);
    /// # other.release().await?;
    /// # one.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn inside(&self) -> Result<u32, LockError> {
        let hold = &self.holds.as_slice()[self.first];
        inside(hold.lease()).await
    }

    /// Whether the lease, or one of them, has been lost.
    pub fn is_lost(&self) -> bool {
        check(self.leases()).is_err()
    }

    /// Completes when the lease, or one of them, is lost, with the [`LockError::Lost`] that says why.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn lost(&self) -> LockError {
        lost(self.leases()).await
    }

    /// Completes when an operator has revoked the lease, or one of them. Then finish soon: the lease is no longer renewed.
    ///
    /// # Cancel safety
    /// Can be dropped and called again.
    pub async fn revoked(&self) {
        revoked(self.leases()).await;
    }

    /// Gives the lock another ttl, on all its keys: the lease then lasts `ttl` from now, and renewals go on with that ttl.
    /// Waits until the store confirms it, at most until the lease ends. It is for a lock with `renew(false)`
    /// whose work takes longer than planned. A lock that is renewed needs it only to survive a longer failure
    /// of the database.
    ///
    /// A lease is never shortened: a shorter ttl takes effect when the lease is next extended. `max_hold`
    /// ends the lock in any case. While a transaction keeps the lock no ttl runs.
    ///
    /// # Errors
    /// [`LockError::Invalid`] for a ttl that [`LockOptions::ttl`](crate::LockOptions::ttl) does not allow. A
    /// ttl below the store's [`shortest_ttl`](crate::store::Capabilities::shortest_ttl) is not refused here.
    /// [`LockError::Lost`] when the lease has ended, or when an operator has revoked it (it then runs to its
    /// present end). [`LockError::Unconfirmed`] when the store did not confirm before the lease ended.
    ///
    /// # Cancel safety
    /// Once polled, the lease is extended whether or not the future is polled again.
    ///
    /// ```
    /// use std::time::Duration;
    /// use dblock::LockManager;
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("import").renew(false).acquire().await?;
    /// // … a first part, which shows that there is much to do …
    /// guard.extend(Duration::from_secs(600)).await?;
    /// assert!(guard.remaining() > Duration::from_secs(500));
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        LockOptions::new().ttl(ttl).check()?;
        join_all(self.leases().map(|lease| lease.extend(ttl)))
            .await
            .into_iter()
            .collect()
    }

    /// Waits until the row of each key names this owner with its token. From here on the lock is not handed over
    /// in memory, so the row stays so until the release. It is for a check of your own in the store, such as
    /// in a script on Redis. Where `verify_in` works, use that instead: it does this too, and keeps others
    /// out.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lease has ended, [`LockError::Unconfirmed`] when the store did not confirm
    /// before that.
    ///
    /// # Cancel safety
    /// Once polled, the lock is no longer handed over in memory.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// guard.pin().await?;
    /// let row = locks.admin().get("order:42").await?.expect("it was taken");
    /// assert_eq!(row.fence_token, guard.fence_token());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn pin(&self) -> Result<(), LockError> {
        join_all(self.leases().map(|lease| lease.pin(true)))
            .await
            .into_iter()
            .collect()
    }

    /// Runs `body` under the lock: nested calls with the same key re-enter, [`current`](crate::current)
    /// finds the lock, and the body is stopped when the lease is lost.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lease ended before the body did. With
    /// [`OnLost::Signal`](crate::OnLost::Signal) a lost lease is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body. The guard keeps the lock.
    ///
    /// # Panics
    /// Only if the body does.
    ///
    /// ```
    /// use dblock::{LockError, LockManager};
    ///
    /// async fn ship(locks: &LockManager) -> Result<(), LockError> {
    ///     locks.lock("order:42").run(async { /* … */ }).await
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").acquire().await?;
    /// assert!(ship(&locks).await.unwrap_err().is_busy());
    /// guard.enter(ship(&locks)).await??;
    /// guard.release().await?;
    /// # Ok::<_, LockError>(()) }).unwrap();
    /// ```
    pub async fn enter<T>(&self, body: impl Future<Output = T>) -> Result<T, LockError> {
        enter(self.holds.as_slice(), body).await
    }

    /// Releases the lock and waits until the store confirms it: for at most 3 seconds, and not beyond the end
    /// of the lease. While other calls of this process share the lock, it does not wait: the place is free for other
    /// processes one request later.
    ///
    /// # Errors
    /// That of the first key that has one; the others are released all the same.
    ///
    /// The work is done by then, and these errors do not undo it: no error of a release is retryable.
    /// [`LockError::Lost`] when the lease had already ended, [`LockError::Unconfirmed`] when the store did
    /// not confirm in time; the manager then goes on trying until the lease has expired.
    ///
    /// # Cancel safety
    /// Once polled, the lock is released whether or not the future is polled again.
    pub async fn release(self) -> Result<(), LockError> {
        release(self.holds.into_vec()).await
    }

    /// Checks in your transaction that the lease on each key is still held, and keeps others out until the
    /// transaction ends. See [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    ///
    /// # Errors
    /// As for [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    ///
    /// # Cancel safety
    /// As for [`CurrentLock::verify_in`](crate::CurrentLock::verify_in).
    #[cfg(feature = "sql")]
    pub async fn verify_in(
        &self,
        transaction: &mut dyn crate::fence::FenceConnection,
    ) -> Result<(), LockError> {
        crate::fence::verify(self.leases(), transaction).await.map(drop)
    }

    /// Ends the lock with a transaction of yours. From here on the transaction keeps the key, without a ttl
    /// and without renewals. Its commit frees the key together with the work, and wakes the next waiter;
    /// nobody enters before. After a rollback, or when the connection ends, nothing of the transaction
    /// stands, and the manager frees the key.
    ///
    /// `transaction` must be an open transaction: on a bare connection the release takes effect at once.
    /// Begin it with [`begin`](crate::begin) after the lock was taken, and call this before the work, before
    /// anything is read. On SQLite call it right before the commit, because from then on the transaction
    /// keeps every other writer out. A guard that re-entered a lock only checks the fence token, as
    /// [`verify_in`](Self::verify_in) does: the outermost guard ends the lock. The module
    /// [`fence`](crate::fence) says what to pass for another driver than sqlx.
    ///
    /// # Errors
    /// As [`verify_in`](Self::verify_in), and [`LockError::Invalid`] for a lock with `hold_min`. On
    /// PostgreSQL also [`LockError::Store`] below a savepoint. After an error roll the transaction back: the
    /// manager frees the key by itself.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock is released at once or with the transaction: roll the transaction
    /// back.
    ///
    /// ```no_run
    /// # async fn pay(locks: &dblock::LockManager, pool: &sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = locks.lock("order:42").acquire().await?;
    /// let mut tx = dblock::begin(pool).await?;
    /// sqlx::query("UPDATE orders SET paid = true WHERE id = 42").execute(&mut *tx).await?;
    /// guard.release_in(&mut tx).await?;
    /// tx.commit().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "sql")]
    pub async fn release_in(
        self,
        transaction: &mut dyn crate::fence::FenceConnection,
    ) -> Result<(), LockError> {
        crate::fence::keep(self.holds.as_slice(), transaction)
            .await
            .map(drop)
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Holds::One(hold) = &self.holds {
            return debug("LockGuard", hold.lease(), f);
        }
        let locks = self
            .leases()
            .map(|lease| fmt::from_fn(move |f| debug("Lock", lease, f)));
        f.write_str("LockGuard ")?;
        f.debug_list().entries(locks).finish()
    }
}

/// Formats what people want to know about a lock.
pub(crate) fn debug(name: &str, lease: &Lease, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut fields = f.debug_struct(name);
    fields
        .field("key", &lease.key().typed())
        .field("owner", &lease.owner())
        .field("fence_token", &lease.fence_token());
    match lease.lost_reason() {
        None => fields.field("remaining", &rounded(lease.remaining())),
        Some(reason) => fields.field("lost", &reason),
    };
    fields.finish()
}

/// Runs `body` under locks that were taken together.
pub(crate) async fn enter<T>(holds: &[Hold], body: impl Future<Output = T>) -> Result<T, LockError> {
    let link = Link::inside_current(holds);
    let leases = holds.iter().map(Hold::lease);
    body::supervise(leases, link.scope(body)).await.in_time()
}

/// Ends the holds of one engine in order. Fails with the first one that is lost or not confirmed.
pub(crate) async fn release(holds: Vec<Hold>) -> Result<(), LockError> {
    let Some(since) = holds.first().map(|hold| hold.lease().now()) else {
        return Ok(());
    };
    // A lease that has ended locally stays lost, even when the row can still be freed.
    let in_time = holds.iter().try_for_each(|hold| hold.lease().check_at(since));
    let unconfirmed = Hold::leave(holds, since + RELEASE_TIMEOUT, in_time.is_ok()).await;
    in_time?;
    match unconfirmed.into_iter().next() {
        None => Ok(()),
        Some((lease, Unconfirmed::NoAnswer(error))) => Err(lease.unconfirmed(
            error,
            lease.now().since(since),
            "the release was not confirmed in time; is a transaction that called `verify_in` still open?",
        )),
        Some((lease, Unconfirmed::Lost(reason))) => Err(lease.lost(reason)),
    }
}

/// Fails with the first lease that has ended.
pub(crate) fn check<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> Result<(), LockError> {
    leases.into_iter().try_for_each(Lease::check)
}

/// Time until the first local deadline of the leases.
pub(crate) fn remaining<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> Duration {
    leases.into_iter().map(Lease::remaining).min().unwrap_or_default()
}

/// How many call chains are inside, as the store says.
pub(crate) async fn inside(lease: &Lease) -> Result<u32, LockError> {
    let row = lease.engine().look_at_row(lease.key()).await?;
    Ok(row.map_or(0, |row| row.inside()))
}

/// Completes when the first of the leases has ended, with the reason as an error.
pub(crate) async fn lost<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> LockError {
    let ended = leases.into_iter().map(|lease| {
        Box::pin(async move {
            lease.ended().await;
            lease.lost(lease.lost_reason().unwrap_or(crate::LostReason::Gone))
        })
    });
    select_all(ended).await.0
}

/// Completes when an operator has revoked one of the leases.
pub(crate) async fn revoked<'l>(leases: impl IntoIterator<Item = &'l Lease>) {
    let revoked = leases.into_iter().map(|lease| Box::pin(lease.revoked()));
    select_all(revoked).await;
}

#[cfg(test)]
mod tests {
    use crate::{LockManager, current};

    #[tokio::test(start_paused = true)]
    async fn holds_are_counted_until_the_lease_is_lost() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        assert_eq!(guard.hold_count(), 1);
        let nested = async {
            let lock = current().unwrap();
            // The child is made under two entries, and has a hold for each.
            let child = crate::inherit(std::future::pending::<()>());
            assert_eq!((lock.hold_count(), guard.hold_count()), (4, 4));
            drop(child);
            assert_eq!(lock.hold_count(), 2);
            lock
        };
        let reenter = locks.lock("a").run(nested);
        let lock = guard.enter(reenter).await.unwrap().unwrap();
        assert_eq!((lock.hold_count(), guard.hold_count()), (1, 1));
        locks.admin().force_release("a").await.unwrap();
        guard.lost().await;
        assert_eq!((lock.hold_count(), guard.hold_count()), (0, 0));
        drop(guard);

        let guard = locks.lock("a").acquire().await.unwrap();
        assert_eq!(
            (lock.hold_count(), guard.hold_count()),
            (0, 1),
            "of another owner"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn debug_shows_the_lock_and_nothing_of_the_engine() {
        let locks = LockManager::connect("memory:").await.unwrap();
        let guard = locks.lock("a").acquire().await.unwrap();
        let (owner, token) = (guard.owner(), guard.fence_token());
        let known = format!("{{ key: \"a\", owner: {owner}, fence_token: {token}, ");
        let held = format!("{known}remaining: 28.5s }}");
        assert_eq!(format!("{guard:?}"), format!("LockGuard {held}"));
        let inside = async { format!("{:?}", crate::current().unwrap()) };
        assert_eq!(guard.enter(inside).await.unwrap(), format!("CurrentLock {held}"));

        locks.admin().force_release("a").await.unwrap();
        guard.lost().await;
        assert_eq!(format!("{guard:?}"), format!("LockGuard {known}lost: Gone }}"));
    }
}
