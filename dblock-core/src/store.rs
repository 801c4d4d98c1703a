//! The contract between the engine and the stores, which keep the rows.
//!
//! A store executes requests. It has no memory of its own, decides nothing about waiting, and never
//! retries an acquire. The clock of its database alone decides when a lease expires.
//!
//! # The row
//! `lock_key` (primary key), `lock_owner`, `reentrant_count`, `expire_at`, `lease_id`, `fence_token`,
//! `fence_ceiling`, `wanted_until`, `acquired_at`, `holder`, `revoked`. All times are µs since the Unix
//! epoch on the store's clock, read at the statement (called *now* below). A row is **free** when
//! `reentrant_count` is 0, **held** when the count is above 0 and `expire_at > now`, and **expired**
//! otherwise. Rows stay after a release.
//!
//! A held row may name a **successor**, the lease of another process that waits for the key: `next_lease`,
//! `next_owner`, `next_holder`, `next_ttl`, `next_spare`, `next_since` and `next_until`. It is *live* while
//! `next_until > now`. The release of the row passes it on to a live successor. On a row that is free or
//! expired these columns mean nothing.

mod answer;
pub mod clock;
mod error;
pub mod events;
pub(crate) mod filter;
pub(crate) mod finding;
mod record;
mod request;
pub(crate) mod row;
pub mod rules;
pub mod schemes;

use std::any::Any;
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use answer::{Outcome, Purged, Released, WakeUp};
pub(crate) use error::one_line;
pub use error::{StoreError, StoreErrorKind, with_causes};
pub(crate) use filter::InspectFilter;
pub(crate) use finding::Finding;
pub use record::{
    Record, RecordChange, RecordEntry, RecordFilter, RecordState, RecordVersion, RecordWrite, Records,
    RunState, WriteLease,
};
#[doc(hidden)]
pub use request::Kind;
pub use request::{
    Acquire, Action, Enter, Extend, HandedOver, NEXT_TTL, QUEUE_AHEAD, Request, Share, Transfer,
};
pub(crate) use row::LockRow;
pub use row::{Holder, SharedHold, Successor};

use crate::key::Key;

/// The future of a store method.
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A store keeps the rows: in one table of one database, or in memory.
///
/// `examples/custom_store` shows how to write a small store of your own, and what to take care of. The crate
/// `dblock-conformance` has the suite that it must pass.
/// `LockManager::builder` takes it as it is, or as an `Arc<dyn Store>` that several managers share. A crate with a
/// store needs this crate only.
///
/// The engine calls every method on its own runtime. It drops a future of [`apply`](Self::apply) only when a
/// statement takes far too long; the store must then give up the connection that it used.
///
/// The [kind](StoreError::kind) of an error says whether the request may have been carried out, and whether
/// to try again.
pub trait Store: Debug + Send + Sync + 'static {
    /// The store's capabilities. Constant for the life of the store.
    fn capabilities(&self) -> Capabilities;

    /// Where the locks are, so that people can tell production from a test: such as `db1:5432/app`, or a
    /// file. Without a user and a password. The default is `None`: nobody knows, or it is not known yet.
    fn location(&self) -> Option<String> {
        None
    }

    /// Executes a batch: at most one request per key, in any order and of any mix of actions. Answers in
    /// the order of the requests, exactly one for each.
    ///
    /// Requests of a batch are independent. When one of them fails, the store finds out which, and still
    /// executes the others. Each action is its own statement, and no row lock outlives the call. A request
    /// that finds its row locked by somebody else is answered with [`Outcome::Skipped`]; the store does not
    /// wait for the row.
    ///
    /// These are the rules, by action and state of the row:
    ///
    /// | action | row | effect and outcome |
    /// |---|---|---|
    /// | `Acquire` | absent | inserted as held by the request: `Granted` |
    /// | | free, another `lease_id` | becomes held: `Granted` |
    /// | | free, the request's `lease_id` | nothing: `Lost` (this lease was released before it was known) |
    /// | | held by the request's `lease_id` | count becomes 1; the same token, the same expiry: `Granted` |
    /// | | held by another `lease_id` | `wanted_until = max(wanted_until, now + wanted_for)` if given; with `queue` see below: `Queued` if the request's lease is the live successor then, else `Busy` |
    /// | | expired, another `lease_id` | becomes held: `Granted` with `taken_over` |
    /// | | expired, the request's `lease_id` | nothing: `Lost` |
    /// | `Extend` | held by the request's `lease_id` | count becomes the given one (1 for 0), and owner, holder and token those of `handed_over` if it is given and its token is not below the row's (a token above the ceiling moves the ceiling as far, where the store [raises tokens](Capabilities::raises_tokens)); unless revoked, `expire_at = max(expire_at, now + ttl)`, or `now + ttl` for a count of 0: `Extended` |
    /// | | anything else | nothing: `Lost` |
    /// | `Release` | held by the request's `lease_id`, a live successor | becomes held by the successor: `Released(PassedOn)` |
    /// | | held by the request's `lease_id` otherwise | count becomes 0, the successor is cleared: `Released(Freed)` |
    /// | | free, the request's `lease_id` | nothing: `Released(Before)` |
    /// | | the request's lease is its successor, live or not | the successor is cleared: `Withdrawn` |
    /// | | anything else | nothing: `Lost` |
    /// | `Transfer` | held by the request's `lease_id`, not revoked | becomes held by `to`; the successor stays: `Granted` |
    /// | | held by `to` | nothing: `Granted` |
    /// | | anything else | nothing: `Lost` |
    ///
    /// To become held means: `lock_owner`, `lease_id`, `holder` from the request, `reentrant_count = 1`,
    /// `fence_token = max(fence_ceiling + 1, now)` (without a clock: anything above `fence_ceiling`),
    /// `fence_ceiling = fence_token + spare_tokens`, `acquired_at = now`, `expire_at = now + ttl`,
    /// `revoked = false`; `wanted_until` stays (0 for a new row), and the successor is cleared. A release
    /// that passes the row on does the same with `next_lease`, `next_owner`, `next_holder`, `next_spare` and
    /// `next_ttl`. A key whose tokens are used up (`fence_ceiling` is the largest number there is) is refused
    /// with an error, and its release passes nothing on.
    ///
    /// `queue` makes the request's lease the successor of a held row. It does so if the row has no live
    /// successor, if this lease is its successor already, or if its successor has waited less, by
    /// [`QUEUE_AHEAD`] at least (without a clock, the first successor keeps its place). To become the
    /// successor means: `next_*` from the request, `next_ttl = min(ttl, `[`NEXT_TTL`]`)`,
    /// `next_since = now - waited` (never later than it was for the same lease),
    /// `next_until = now + wanted_for`.
    ///
    /// A store that [shares](Capabilities::shares) keeps a list of [`SharedHold`]s and a limit for the successor
    /// beside these columns. It carries out an `Acquire` with a `limit`, an `Extend` with a `share`, and the
    /// `Release` of a lease in that list by [`rules::carry_out`] on the locked row. While such holds live, the row
    /// names a lease of their own. So no other rule, and no other request, need know of them. The list counts only
    /// under the lease with which it was written, and the successor's limit only for the lease that it was written for:
    /// a version without shared holds changes both without looking.
    ///
    /// A busy acquire need not write `wanted_until` while at least half of `wanted_for` is still ahead, nor
    /// the successor if that is the request's lease and owner already. `Queued` is only ever answered from a
    /// row that the request has locked. If there is nothing to write, a store may instead answer `Busy` from
    /// a row that it has read without a lock.
    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>>;

    /// Checks that the table is there and fits this version of dblock.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] with the remedy when it is missing, older or too new.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>>;

    /// Creates or upgrades the tables. Idempotent, and safe from many nodes at once.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] with the remedy when the tables are of a later version, or somebody else's.
    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>>;

    /// Reads rows without locking them. The filter says which rows, in which order, and after which position.
    /// A store that has all its rows in memory can use [`InspectFilter::select`].
    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>>;

    /// Reads the rows of several keys, without locking them. Returns one answer for each key, in the order of
    /// the keys. Calls ask for this while they are inside a lock, so a store with few connections answers it
    /// on one that is open, and in one round trip. The default reads [one](Self::row) after the other.
    fn rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Vec<Result<Option<LockRow>, StoreError>>> {
        Box::pin(async move {
            let mut rows = Vec::with_capacity(keys.len());
            for key in keys {
                rows.push(self.row(key).await);
            }
            rows
        })
    }

    /// Reads the row of one key for a person or a program that asks who holds it, without changing it. A store
    /// whose rows are locked by transactions of others says so in [`LockRow::transaction`], also where
    /// [`inspect`](Self::inspect) cannot tell. It may then look at the row's locks, which takes a few
    /// statements more. The default inspects that key.
    fn row<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<Option<LockRow>, StoreError>> {
        Box::pin(async move {
            // The keys that begin with this one come after it.
            let filter = InspectFilter::new().prefix(key.as_str()).include_free().limit(1);
            let found = self.inspect(&filter).await?;
            Ok(found.into_iter().find(|row| row.key == *key))
        })
    }

    /// Marks the lease that holds `key` as revoked: it is no longer extended. Returns whether the key was
    /// held.
    ///
    /// # Errors
    /// A transaction that is still open [keeps](LockRow::transaction) the key. The message says which one. The
    /// store waits for the row for a short time at most.
    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>>;

    /// Frees `key`, whoever holds it: count 0, no successor, and `lease_id` replaced by a fresh one, so that
    /// the former holder's requests find nothing. Returns whether the key was held.
    ///
    /// # Errors
    /// As [`revoke`](Self::revoke).
    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>>;

    /// Listens for releases of keys for which acquires of this store wait ([`Acquire::wanted_for`]), and
    /// reports each one to `tell`, until the store cannot listen any more. The returned error says why it
    /// cannot. Called only where [`Capabilities::wake_ups`] is set. Dropping the future ends the listening.
    ///
    /// [`WakeUp::Listening`] is reported first. From then on it reports the releases of each key that an
    /// acquire asks for, until 10 seconds after the last such acquire. If it cannot, the future ends. A store
    /// may report more: releases of all keys, and leases that expire. Of a key that is shared it reports
    /// [`WakeUp::MayEnter`] instead, as [`CarriedOut::tells`](rules::CarriedOut::tells) says, or
    /// [`WakeUp::Released`], which makes all ask that wait.
    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        let _ = tell;
        Box::pin(async {
            StoreError::new(
                StoreErrorKind::Unsupported,
                "this store tells nothing of releases",
            )
        })
    }

    /// One step of a purge. It looks at up to `limit` rows in the order of their keys, starting after the key
    /// `after`, and deletes those that were unused for `idle`: `expire_at`, `wanted_until` and
    /// `fence_ceiling` all lie `idle` or more before now. After a purge the next grant of the key is a first
    /// one, whose token is the clock. That is why the ceiling must be in the past.
    ///
    /// A store that drops unused rows by itself has nothing to do, which is the default. Other stores set
    /// [`Capabilities::purge`].
    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        let _ = (idle, after, limit);
        Box::pin(async { Ok(Purged::default()) })
    }

    /// Checks what could keep locks in this store from working: rights, settings, clock, and so on. It
    /// changes nothing. The default has nothing to check.
    ///
    /// # Errors
    /// The store cannot be reached or refuses altogether. Everything else is a [`Finding`].
    fn diagnose(&self) -> StoreFuture<'_, Result<Vec<Finding>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    /// A store over the same rows for one more manager, with connections of its own. So no manager depends on
    /// connections that another one may close or use up. The default, `None`, is for a store that managers
    /// can share.
    fn for_manager(&self) -> Option<Arc<dyn Store>> {
        None
    }

    /// Closes the store's own connections, because its manager has ended. A store without
    /// [`for_manager`](Self::for_manager) may have other managers, now or later, and stays usable.
    fn close(&self) -> StoreFuture<'_, ()>;

    /// Which of the store's [parts](Capabilities::parts) keeps the row of `key`, counted from 0. The engine
    /// sends the requests of each part in batches of their own, side by side, so that a part that hangs
    /// delays no other.
    fn part_of(&self, key: &Key) -> usize {
        let _ = key;
        0
    }

    /// For stores of dblock itself: what a statement in a user's transaction needs to know about a part. Only
    /// dblock can read it. A store around another one passes its answer on. Asked when a lease exists there.
    #[doc(hidden)]
    fn transaction_source(&self, part: usize) -> Option<Arc<dyn Any + Send + Sync>> {
        let _ = part;
        None
    }

    /// For stores of dblock itself: makes free rows for those keys that have none, for transactions that are about
    /// to take them. Returns whether there was such a key. A row that a crash of the server forgets is no harm.
    #[doc(hidden)]
    fn make_free_rows<'a>(&'a self, keys: &'a [Key]) -> StoreFuture<'a, Result<bool, StoreError>> {
        let _ = keys;
        Box::pin(async { Ok(false) })
    }

    /// The records of `run_once`; `None`, the default, for a store that keeps none.
    fn records(&self) -> Option<&dyn Records> {
        None
    }
}

/// The capabilities of a store.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each says of one thing whether the store can do it"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// A short name for messages and logs, such as `postgres`.
    pub name: &'static str,
    /// The store runs on the runtime that builds the manager, if there is one, and not on the engine's own thread.
    pub callers_runtime: bool,
    /// A user's transaction in the same database can check the fence token of every key.
    pub verify_in: bool,
    /// How many calls of [`Store::apply`] may run at once, for each part.
    pub concurrency: usize,
    /// How many parts [`Store::part_of`] tells apart: at least 1, which is the default.
    pub parts: usize,
    /// An `Extend` with a token above the row's ceiling raises the ceiling to that token, so that later
    /// grants are above it, too. `ShardedStore::moving_to` needs this.
    pub raises_tokens: bool,
    /// [`Store::listen`] reports releases by other processes. Without it waiters poll.
    pub wake_ups: bool,
    /// [`Store::apply`] never waits: its future is ready at the first poll. The engine then carries out
    /// requests in the thread that makes them.
    pub immediate: bool,
    /// The rows of unused keys stay until [`Store::purge`] deletes them. Without this [`Store::purge`] does
    /// nothing, and the store drops such rows itself. It does so only when their tokens are in the past and
    /// no request of their last lease can be on its way. The memory store drops rows, and can be purged too.
    pub purge: bool,
    /// The shortest lease that the store can keep. A manager refuses an acquire with a shorter ttl before
    /// anything is sent. Zero, the default, allows every ttl. A store that counts in steps rounds a lease up.
    pub shortest_ttl: Duration,
    /// The store has a clock that can be read: [`Holder::remaining`] and the times of a [`LockRow`] are
    /// exact. Without it `remaining` is `None`, and fence tokens have nothing to do with a clock. They are
    /// then larger than all earlier tokens of the key, and than the tokens that earlier grants kept free.
    pub clock: bool,
    /// A row outlives its lease. So the store can tell a takeover from the grant of a free row, refuses a
    /// lease that was released or has expired, and confirms a second release. Without this nothing remains of
    /// a lease that is over: `taken_over` is always `None`, [`Store::inspect`] finds held rows only, and an
    /// extend or release of a lease that is over is [`Lost`](Outcome::Lost). An acquire with such a lease,
    /// which the engine never sends, may be a new grant.
    pub former_leases: bool,
    /// A held row names a successor, and its release passes it on. Without it `queue` means nothing: the
    /// answer is [`Busy`](Outcome::Busy), and waiters compete for a key that was released.
    pub queues: bool,
    /// The store knows [shared holds](LockRow::shared). Without this the manager refuses a shared or limited lock.
    pub shares: bool,
}

impl Capabilities {
    /// Capabilities of a store called `name`: own thread, no fence check, one part, one call at a time,
    /// tokens not raised, no wake-ups, no purge, no shared holds. Any ttl, a clock, rows that outlive their leases,
    /// and successors.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            callers_runtime: false,
            verify_in: false,
            concurrency: 1,
            parts: 1,
            raises_tokens: false,
            wake_ups: false,
            immediate: false,
            purge: false,
            shortest_ttl: Duration::ZERO,
            clock: true,
            former_leases: true,
            queues: true,
            shares: false,
        }
    }
}
