//! One way to lock: the keys, how to take them, and an end that says what is wanted.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use dblock_core::limits;

use super::LockManager;
use crate::body;
use crate::guard::{Holds, LockGuard};
use crate::{InvalidKey, Key};
use crate::{LockError, TimeoutCause};
use crate::{LockOptions, OnLost, Waiting};

impl LockManager {
    /// The most keys that one call takes together.
    pub const MAX_KEYS: usize = limits::MAX_KEYS;

    /// A lock on a key, or on several keys: how to take it, and then an end that says what is wanted.
    ///
    /// | end | the lock is held |
    /// |---|---|
    /// | [`run(body)`](LockBuilder::run), [`blocking_run(body)`](LockBuilder::blocking_run) | while the body runs |
    /// | [`acquire()`](LockBuilder::acquire), [`try_acquire()`](LockBuilder::try_acquire) | as long as the guard that it gives |
    /// | `transaction(&pool, body)` | until a transaction of the database has committed |
    /// | [`lead(body)`](LockBuilder::lead) | for as long as this node is the leader |
    ///
    /// Without options the ttl is 30 seconds, the lease is renewed, a busy lock is an error at once, and a
    /// lost lease stops the body, if it is async.
    ///
    /// # Several keys
    /// All of them are taken, or none. They are sorted, and a key that is given twice counts once. When all
    /// of them are free, this takes one round trip. When one is busy, the call waits for that one and holds
    /// only smaller keys meanwhile. So calls that hold nothing else never wait for each other in a circle,
    /// in whatever order they name their keys. A key that the call chain already holds is re-entered.
    ///
    /// When a key is busy, the call gives back the larger keys that it has taken. So for a moment others may
    /// find those busy. Without `wait`, two calls with the same keys may both fail for that reason.
    ///
    /// The options apply to each key, except that `wait` is for all of them together. `max_hold` counts for
    /// each key from its own grant, and so does the ttl with `renew(false)`: make them longer than the
    /// `wait`. A lease that is lost before all keys are taken is acquired anew, within `wait`.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::LockManager;
    ///
    /// let locks = LockManager::connect("memory:").await?;
    /// let wait = Duration::from_secs(5);
    /// let sum = locks.lock("account:7").wait(wait).run(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    ///
    /// let guard = locks.lock(["account:7", "account:3"]).wait(wait).acquire().await?;
    /// assert_eq!(guard.keys().collect::<Vec<_>>(), ["account:3", "account:7"]);
    /// guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub fn lock(&self, keys: impl LockKeys) -> LockBuilder<'_> {
        LockBuilder {
            locks: self,
            keys: keys.wanted(self.namespace(), Sealed),
            options: LockOptions::new(),
        }
    }
}

/// A lock that is about to be taken. From [`LockManager::lock`].
#[derive(Debug)]
#[must_use = "nothing is locked before an end such as `run(…)` or `acquire()` is awaited"]
pub struct LockBuilder<'m> {
    pub(super) locks: &'m LockManager,
    /// The keys, or why they are refused: the end that is called says so.
    pub(super) keys: Result<Wanted, String>,
    pub(super) options: LockOptions,
}

/// How the lock is taken.
impl LockBuilder<'_> {
    /// Options as a value, such as those of a configuration file. They replace what was set before; what
    /// follows changes them.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::{LockManager, LockOptions};
    /// let locks = LockManager::connect("memory:").await?;
    /// let shared = LockOptions::new().ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
    /// let guard = locks.lock("import").options(&shared).renew(false).acquire().await?;
    /// assert!(guard.remaining() <= Duration::from_secs(10));
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub fn options(mut self, options: &LockOptions) -> Self {
        self.options.clone_from(options);
        self
    }

    /// Length of the lease, 30 seconds by default: [`LockOptions::ttl`].
    #[inline]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|options| options.ttl(ttl))
    }

    /// How long the acquire may take in all, not at all by default: [`LockOptions::wait`].
    #[inline]
    pub fn wait(self, wait: Duration) -> Self {
        self.set(|options| options.wait(wait))
    }

    /// Waits until the lock is free, however long that takes: [`LockOptions::wait_forever`].
    pub fn wait_forever(self) -> Self {
        self.set(LockOptions::wait_forever)
    }

    /// Whether the lease is renewed, which it is by default: [`LockOptions::renew`].
    #[inline]
    pub fn renew(self, renew: bool) -> Self {
        self.set(|options| options.renew(renew))
    }

    /// What happens to the body when the lease is lost; it is stopped by default: [`LockOptions::on_lost`].
    pub fn on_lost(self, on_lost: OnLost) -> Self {
        self.set(|options| options.on_lost(on_lost))
    }

    /// The longest time that the lock may be held: [`LockOptions::max_hold`].
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.set(|options| options.max_hold(max_hold))
    }

    /// Keeps one key busy for at least this long after the grant: [`LockOptions::hold_min`].
    pub fn hold_min(self, hold_min: Duration) -> Self {
        self.set(|options| options.hold_min(hold_min))
    }

    /// Shares the lock with other calls that share it: [`LockOptions::shared`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let reader = locks.lock("catalog").shared().acquire().await?;
    /// let other = locks.lock("catalog").shared().acquire().await?;
    /// assert!(locks.lock("catalog").try_acquire().await?.is_none(), "a writer waits for both");
    /// # reader.release().await?;
    /// # other.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn shared(self) -> Self {
        self.set(LockOptions::shared)
    }

    /// At most so many calls run at once, in all processes together: [`LockOptions::limit`].
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let provider = || locks.lock("provider").limit(2);
    /// let (one, two) = (provider().acquire().await?, provider().acquire().await?);
    /// assert!(provider().try_acquire().await?.is_none());
    /// # one.release().await?;
    /// # two.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    #[inline]
    pub fn limit(self, limit: u32) -> Self {
        self.set(|options| options.limit(limit))
    }

    /// What is called once a second while the acquire waits: [`LockOptions::on_wait`].
    pub fn on_wait(self, told: impl Fn(&Waiting) + Send + Sync + 'static) -> Self {
        self.set(|options| options.on_wait(told))
    }

    #[inline]
    fn set(mut self, change: impl FnOnce(LockOptions) -> LockOptions) -> Self {
        self.options = change(self.options);
        self
    }
}

/// The ends: each says what is wanted.
impl<'m> LockBuilder<'m> {
    /// Runs `body` under the lock. This is what the attribute expands to.
    ///
    /// The body starts when the lock is taken. When it returns or panics, the lock is released. The call
    /// waits for the release for at most 3 seconds, and not beyond the end of the lease. Then it returns the
    /// body's value or resumes the panic. When a lease is lost, the body is dropped at its next await.
    ///
    /// A body that returns a `Result` gives a `Result` in a `Result`: `run(body).await?` is that of the body,
    /// where the error type is made `From<LockError>`. The second example shows it.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] when a lease ended before the body did. With
    /// [`OnLost::Signal`] a lost lease is no error.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body first and then releases the lock in the background.
    ///
    /// # Panics
    /// Only if the body does.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use dblock::{LockManager, current_locks};
    /// let locks = LockManager::connect("memory:").await?;
    /// let sum = locks.lock("account:7").run(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// let held = locks.lock(["account:7", "account:3"]).run(async { current_locks().len() }).await?;
    /// assert_eq!(held, 2);
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    ///
    /// ```
    /// use dblock::{LockError, LockManager};
    ///
    /// #[derive(Debug)]
    /// enum OrderError {
    ///     Lock(LockError),
    ///     Unpaid,
    /// }
    ///
    /// impl From<LockError> for OrderError {
    ///     fn from(error: LockError) -> Self {
    ///         Self::Lock(error)
    ///     }
    /// }
    ///
    /// async fn ship(locks: &LockManager, paid: bool) -> Result<&'static str, OrderError> {
    ///     let body = async { if paid { Ok("shipped") } else { Err(OrderError::Unpaid) } };
    ///     locks.lock("order:42").run(body).await?
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locks = LockManager::connect("memory:").await?;
    /// assert_eq!(ship(&locks, true).await?, "shipped");
    /// assert!(matches!(ship(&locks, false).await, Err(OrderError::Unpaid)));
    /// let guard = locks.lock("order:42").acquire().await?;
    /// assert!(matches!(ship(&locks, true).await, Err(OrderError::Lock(error)) if error.is_busy()));
    /// # guard.release().await?;
    /// # Ok::<_, OrderError>(()) }).unwrap();
    /// ```
    pub fn run<F: Future>(self, body: F) -> impl Future<Output = Result<F::Output, LockError>> + use<'m, F> {
        body::run(async move { Ok(self.holds().await?.0.into_vec()) }, body)
    }

    /// Runs `body`, which is not async, under the lock, and blocks this thread meanwhile. This is what the attribute
    /// on a plain `fn` expands to.
    ///
    /// It differs from [`run`](Self::run) in one thing: a lost lease cannot stop the body. The call tells of
    /// the loss when the body has ended, and a long body should ask
    /// [`CurrentLock::is_lost`](crate::CurrentLock::is_lost) between its steps. So check the fence token
    /// wherever the body writes.
    ///
    /// The body's calls on its thread run under the lock. A thread or task that it starts is another owner. Do not
    /// wait for a pool such as rayon's in the body: it may run another job on this thread meanwhile, under your lock.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// If the body does, and as [`LockManager::block_on`].
    ///
    /// ```
    /// use dblock::{LockManager, current};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let runtime = tokio::runtime::Runtime::new()?;
    /// # let locks = runtime.block_on(LockManager::connect("memory:"))?;
    /// let key = locks.lock("order:42").blocking_run(|| {
    ///     let lock = current().expect("under a lock");
    ///     lock.key().to_owned()
    /// })?;
    /// assert_eq!(key, "order:42");
    /// # Ok(()) }
    /// ```
    #[track_caller]
    pub fn blocking_run<T>(self, body: impl FnOnce() -> T) -> Result<T, LockError> {
        let locks = self.locks;
        let holds = locks.block_on(self.holds())?.0.into_vec();
        let (holds, ended) = body::run_blocking(holds, body);
        locks.block_on(body::finish(holds, ended))
    }

    /// Takes the lock by hand. Prefer the attribute, or [`run`](Self::run): there the lock cannot outlive the
    /// work, and the work cannot outlive the lease.
    ///
    /// In a call chain that already holds the key, this re-enters. The guard itself starts no chain: a nested
    /// call with the same key finds the lock busy, or waits for it, unless it runs in [`LockGuard::enter`].
    ///
    /// # Errors
    /// - [`LockError::Invalid`] for a bad key or option, before anything is sent: also without keys, with
    ///   more than [`MAX_KEYS`](LockManager::MAX_KEYS), and for `hold_min` with several keys.
    /// - [`LockError::Busy`] when another owner holds the lock and no `wait` was given,
    ///   [`LockError::Timeout`] when the `wait` has run out.
    /// - [`LockError::Store`] when the store failed: at once if the error is permanent or no `wait` was
    ///   given, else when the `wait` has run out. Without `wait`, a store that does not answer fails after 5
    ///   seconds.
    /// - [`LockError::Lost`] when the chain holds the key by a lease that has ended.
    /// - [`LockError::Shutdown`] after [`shutdown`](LockManager::shutdown).
    ///
    /// The error is about the key that was the reason, and then no key stays locked.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no lock behind: a grant that arrives later goes to the next caller of this
    /// process, or is released. For 3 s more the row may say that somebody waits.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        let (holds, first) = self.holds().await?;
        Ok(LockGuard::new(holds, first))
    }

    /// Takes the lock if it is free, or becomes free within the `wait`. Returns `None` if it, or one of several
    /// keys, is busy for that long.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but a busy lock is not an error. So a [`LockError::Timeout`] always
    /// says that the database did not answer in time ([`TimeoutCause::NoAnswer`]): it is unknown whether the
    /// lock is busy.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use dblock::LockManager;
    /// let locks = LockManager::connect("memory:").await?;
    /// let guard = locks.lock("order:42").try_acquire().await?.expect("free");
    /// let soon = Duration::from_millis(50);
    /// assert!(locks.lock("order:42").wait(soon).try_acquire().await?.is_none());
    /// # guard.release().await?;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, LockError> {
        match self.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(LockError::Busy { .. }) => Ok(None),
            // An error of the store is not `Busy`.
            Err(LockError::Timeout { cause, .. }) if cause != TimeoutCause::NoAnswer => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the locks, and says which of them was named first.
    pub(crate) async fn holds(&self) -> Result<(Holds, usize), LockError> {
        match &self.keys {
            Err(refused) => Err(LockError::invalid(refused.clone())),
            Ok(Wanted::One(key)) => Ok((Holds::One(self.locks.hold(key, &self.options).await?), 0)),
            // Boxed, so that a call for one key does not carry the size of this future.
            Ok(Wanted::Several(keys, first)) => {
                let holds = Box::pin(self.locks.hold_all(keys, &self.options)).await?;
                Ok((Holds::Several(holds), *first))
            }
        }
    }

    /// The key, for an end that takes one only.
    pub(super) fn one_key(keys: Result<Wanted, String>, several: &str) -> Result<Key, LockError> {
        match keys {
            Ok(Wanted::One(key)) => Ok(key),
            Ok(Wanted::Several(..)) => Err(LockError::invalid(several)),
            Err(refused) => Err(LockError::invalid(refused)),
        }
    }
}

// ── The keys ────────────────────────────────────────────────────────────────────────────────────────

/// One key or several, as [`LockManager::lock`] takes them.
///
/// | type | what is locked |
/// |---|---|
/// | `&str`, `String`, `&String` | one key |
/// | an array, a slice or a `Vec` of them, also borrowed | all of the keys or none; each counts once |
///
/// It is implemented for these types only.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a lock key nor a list of keys",
    label = "expected a `&str` or a `String`, or an array, a slice or a `Vec` of them",
    note = "to format a key, write `format!(\"order:{{id}}\")`; to collect an iterator, `.collect::<Vec<_>>()`"
)]
pub trait LockKeys {
    /// The message says why a key, or the list, is refused.
    #[doc(hidden)]
    fn wanted(self, namespace: Option<&str>, sealed: Sealed) -> Result<Wanted, String>;
}

/// Nobody else can name this type, so nobody else can implement [`LockKeys`].
#[derive(Debug)]
pub struct Sealed;

/// The keys of a call.
#[derive(Debug)]
pub enum Wanted {
    One(Key),
    /// At least two, sorted, and the place among them of the one that was given first.
    Several(Vec<Key>, usize),
}

fn checked(namespace: Option<&str>, key: &str) -> Result<Key, String> {
    Key::new(namespace, key).map_err(|refused: InvalidKey| refused.to_string())
}

impl Wanted {
    /// Each of the keys once.
    pub(crate) fn of<K: AsRef<str>>(
        namespace: Option<&str>,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Self, String> {
        let (mut sorted, mut first) = (BTreeSet::new(), None);
        for key in keys {
            let key = checked(namespace, key.as_ref())?;
            first.get_or_insert_with(|| key.clone());
            sorted.insert(key);
            if sorted.len() > LockManager::MAX_KEYS {
                return Err(format!(
                    "more than {} keys for one call; lock what they have in common instead",
                    limits::MAX_KEYS
                ));
            }
        }
        let Some(first) = first else {
            return Err("no keys to lock; name at least one, such as \"account:7\"".into());
        };
        if sorted.len() == 1 {
            return Ok(Self::One(first));
        }
        let place = sorted.iter().take_while(|key| **key < first).count();
        Ok(Self::Several(sorted.into_iter().collect(), place))
    }
}

macro_rules! one_key {
    ($($key:ty),*) => {$(
        impl LockKeys for $key {
            fn wanted(self, namespace: Option<&str>, _: Sealed) -> Result<Wanted, String> {
                checked(namespace, self.as_ref()).map(Wanted::One)
            }
        }
    )*};
}

macro_rules! several_keys {
    ($([$($generic:tt)*] $keys:ty),*) => {$(
        impl<K: AsRef<str>, $($generic)*> LockKeys for $keys {
            fn wanted(self, namespace: Option<&str>, _: Sealed) -> Result<Wanted, String> {
                Wanted::of(namespace, self)
            }
        }
    )*};
}

one_key!(&str, &&str, String, &String);
several_keys!([const N: usize] [K; N], [const N: usize] &[K; N], [] &[K], [] Vec<K>, [] &Vec<K>);
