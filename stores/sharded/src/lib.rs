#![doc = include_str!("../README.md")]

// The store has no rows of its own and decides nothing about a lock. `store` is the contract, `place` says which
// shard keeps a key, `moved` carries out requests for keys that two shards keep while they move.

mod listen;
mod moved;
mod place;
mod rows;
mod store;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::store::{Outcome, Request, Store, StoreError, StoreFuture};
use dblock_core::{Key, LockError};
use futures_util::future::try_join_all;

use self::moved::Moved;
use self::place::{Place, Places};

type Answer = Result<Outcome, StoreError>;

/// Locks spread over several stores, the *shards*, for services that outgrow one server.
///
/// One shard keeps each key. The key and the **names** of the shards decide which one (rendezvous hashing).
/// The order of the shards, their addresses, the machine and the version of dblock do not matter. So a shard
/// can move to another server under its name. A new shard takes over its share of the keys from all others,
/// and no other key moves. **All processes must use the same names for the same stores.**
///
/// A shard that is down stops its own keys only. Exclusion, fence tokens and all other promises of a key are
/// those of its shard. The `ShardedStore` can only do what all of its shards can do
/// ([`Capabilities`](dblock_core::store::Capabilities)). For a fence check, open the transaction on the database of
/// the key's own shard, [`shard_of`](Self::shard_of). The `ShardedStore` keeps no
/// [`records`](Store::records): those of a key would stay behind when the key moves to another shard, and
/// finished work would run again. Use a manager over one database for `run_once`.
///
/// ```
/// use std::sync::Arc;
/// use dblock_sharded::ShardedStore;
/// use dblock::store::{MemoryStore, Store};
/// use dblock::LockManager;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// // In a service: `StoreSource::from(&pool).into_store("distributed_lock")?`, a database for each shard.
/// let (a, b): (Arc<dyn Store>, Arc<dyn Store>) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
/// let shards = ShardedStore::new([("a", a), ("b", b)])?;
/// let locks = LockManager::builder(shards).build().await?;
/// let guard = locks.lock("order:42").acquire().await?;
/// # guard.release().await?;
/// # Ok::<_, dblock::LockError>(()) }).unwrap();
/// ```
///
/// # Adding or removing a shard
/// If processes with the old shards were replaced at once by processes with the new ones, an old process
/// could hold a key in one shard while a new process holds it in another. So replace the processes twice:
/// first by processes with [`moving_to`](Self::moving_to), and when all processes have that, by processes
/// with the new shards.
pub struct ShardedStore {
    shards: Vec<Shard>,
    places: Places,
}

struct Shard {
    name: Arc<str>,
    store: Arc<dyn Store>,
}

impl ShardedStore {
    /// A store over the given shards, each with its name.
    ///
    /// # Errors
    /// [`LockError::Invalid`] without shards, for a name that is empty, contains NUL or occurs twice, and for
    /// a shard that is a `ShardedStore` itself.
    pub fn new<N: Into<String>>(
        shards: impl IntoIterator<Item = (N, Arc<dyn Store>)>,
    ) -> Result<Self, LockError> {
        let shards = shards.into_iter().map(|(name, store)| Shard {
            name: name.into().into(),
            store,
        });
        let shards: Vec<Shard> = shards.collect();
        let names: Vec<_> = shards.iter().map(|shard| Arc::clone(&shard.name)).collect();
        for (at, name) in names.iter().enumerate() {
            if name.is_empty() || name.contains('\0') || names[..at].contains(name) {
                return Err(LockError::invalid(format!(
                    "a shard is named {name:?}: give each shard a name of its own, not empty and without NUL"
                )));
            }
        }
        if shards.is_empty() {
            return Err(LockError::invalid("a ShardedStore needs at least one shard"));
        }
        let is_nested = |shard: &&Shard| shard.store.capabilities().name == store::NAME;
        if let Some(nested) = shards.iter().find(is_nested) {
            return Err(LockError::invalid(format!(
                "the shard {:?} has shards itself: list those instead",
                nested.name
            )));
        }
        let parts = |shard: &Shard| (Arc::clone(&shard.name), shard.store.capabilities().parts);
        Ok(Self {
            places: Places::new(shards.iter().map(parts)),
            shards,
        })
    }

    /// The store to use while processes with the shards of `self` are replaced by processes with those of
    /// `new`. It holds a key that moves on both of its shards, first on the old one. So it excludes processes
    /// with the shards of `self`, and also those with the shards of `new`. A shard that has the same name in
    /// both is the same shard.
    ///
    /// 1. Replace all processes, which use `self`, by processes that use `self.moving_to(new)`.
    /// 2. When no process uses `self` any more, wait for [`time_left`](Self::time_left). Until then only the
    ///    old shards know some things, such as the lease of a process that was cut off.
    /// 3. Replace all processes by processes that use `new`.
    ///
    /// Meanwhile a lock on a key that moves costs four or five round trips instead of two. A fence check of
    /// such a key is refused as unsupported. Nothing is purged, and every list of rows reads all of them.
    /// Fence tokens grow over the whole change.
    ///
    /// # Errors
    /// [`LockError::Invalid`] when `self` or `new` is moving already, and for a shard that cannot raise
    /// tokens ([`Capabilities::raises_tokens`](dblock_core::store::Capabilities::raises_tokens)). In the second
    /// case stop all processes, wait for the longest ttl, and start them with `new`.
    pub fn moving_to(self, new: Self) -> Result<Self, LockError> {
        let all = || self.shards.iter().chain(&new.shards);
        if let Some(shard) = all().find(|shard| !shard.store.capabilities().raises_tokens) {
            return Err(LockError::invalid(format!(
                "the shard {:?} ({}) cannot raise fence tokens, so keys cannot move while they are used: stop all \
                 processes, wait for the longest ttl, and start them with the new shards",
                shard.name,
                shard.store.capabilities().name
            )));
        }
        let places = self.places.moving_to(&new.places).ok_or_else(|| {
            LockError::invalid(
                "a ShardedStore that is moving cannot be moved again: finish the first change on all processes",
            )
        })?;
        let mut shards = new.shards;
        let is_old = |shard: &Shard| shards.iter().all(|kept| kept.name != shard.name);
        let old: Vec<Shard> = self.shards.into_iter().filter(is_old).collect();
        shards.extend(old);
        Ok(Self { shards, places })
    }

    /// The name of the shard that keeps `key`; while the key moves, the name of its new shard. `key` includes
    /// the manager's namespace.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dblock_sharded::ShardedStore;
    /// # use dblock::store::{MemoryStore, Store};
    /// # fn store() -> Arc<dyn Store> { Arc::new(MemoryStore::new()) }
    /// # let runtime = tokio::runtime::Runtime::new().unwrap();
    /// # let _inside = runtime.enter();
    /// let shards = ShardedStore::new([("a", store()), ("b", store())])?;
    /// let key = dblock::Key::new(Some("billing"), "order:42")?;
    /// assert_eq!(shards.shard_of(&key), "b");
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    pub fn shard_of(&self, key: &Key) -> &str {
        match self.places.of(key) {
            Place::One(at) | Place::Moved { new: at, .. } => &self.shards[at].name,
        }
    }

    /// How long the old shards still know something about keys that move that the new ones do not: a lease,
    /// or a fence token that is ahead of the clock. Zero when the processes may go on to the new shards, and
    /// always for a store that is not moving.
    ///
    /// Call it when no process with the old shards runs any more. Wait for the time that it returns, and in
    /// addition for as long as the clocks of the shards may differ. It does not see a transaction that keeps
    /// a lock (`LockBuilder::transaction`): those of the old processes
    /// must have ended in the database, too.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use dblock_sharded::ShardedStore;
    /// # use dblock::store::{MemoryStore, Store};
    /// # fn store() -> Arc<dyn Store> { Arc::new(MemoryStore::new()) }
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let (a, b) = (store(), store());
    /// let (old, new) = (ShardedStore::new([("a", a.clone())])?, ShardedStore::new([("a", a), ("b", b)])?);
    /// let moving = old.moving_to(new)?;
    /// tokio::time::sleep(moving.time_left().await.expect("the shards answer")).await;
    /// # Ok::<_, dblock::LockError>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// When a shard cannot be read, or has not answered within 30 seconds. The message names it. Nothing is known
    /// then.
    ///
    /// # Cancel safety
    /// Reads only.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn time_left(&self) -> Result<Duration, StoreError> {
        rows::time_left(self).await
    }

    fn moved(&self, old: usize, new: usize) -> Moved<'_> {
        Moved {
            old: &self.shards[old],
            new: &self.shards[new],
        }
    }

    /// Asks the key's shard, or both while it moves. Whether one of them says yes.
    async fn operate<'a>(
        &'a self,
        key: &'a Key,
        ask: impl Fn(&'a dyn Store) -> StoreFuture<'a, Result<bool, StoreError>>,
    ) -> Result<bool, StoreError> {
        let shards = match self.places.of(key) {
            Place::One(at) => vec![at],
            Place::Moved { old, new } => vec![old, new],
        };
        let answers = shards.into_iter().map(|at| {
            let shard = &self.shards[at];
            let answer = ask(&*shard.store);
            async move { answer.await.map_err(|error| shard.named(error)) }
        });
        Ok(try_join_all(answers).await?.contains(&true))
    }

    /// Asks every shard.
    async fn each<'a, T>(
        &'a self,
        ask: impl Fn(&'a dyn Store) -> StoreFuture<'a, Result<T, StoreError>>,
    ) -> Result<Vec<T>, StoreError> {
        let answers = self.shards.iter().map(|shard| {
            let answer = ask(&*shard.store);
            async move { answer.await.map_err(|error| shard.named(error)) }
        });
        try_join_all(answers).await
    }

    async fn at_place(&self, place: Place, requests: &[Request]) -> Vec<Answer> {
        match place {
            Place::One(at) => self.shards[at].apply(requests).await,
            Place::Moved { old, new } => self.moved(old, new).apply(requests).await,
        }
    }
}

impl Shard {
    async fn apply(&self, requests: &[Request]) -> Vec<Answer> {
        let answers = self.store.apply(requests).await;
        let named = |answer: Answer| answer.map_err(|error| self.named(error));
        answers.into_iter().map(named).collect()
    }

    /// The error, with the name of the shard.
    fn named(&self, error: StoreError) -> StoreError {
        error.with_prefix(&format!("the shard {:?}: ", self.name))
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.store.capabilities().name)
    }
}

impl fmt::Debug for ShardedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardedStore")
            .field("shards", &self.shards)
            .field("moving", &self.places.are_moving())
            .finish()
    }
}
