//! The attributes of dblock. Use them through that crate, which re-exports them.
//!
//! An attribute is read (`pairs`, `args`, `once`, `values`, `duration`). Its function is split (`function`, `desugared`) and
//! checked (`check`). The key template is resolved against the function's arguments (`template`, `format`), and
//! the parts are put together (`expand`, `layer`, `lock`, `options`, `retry`, `output`, `capture`). Mistakes are collected
//! (`errors`, `suggest`) and reported all at once, and the function then stays as it was. The generated code
//! calls `dblock::__private` and nothing else.

mod args;
mod capture;
mod check;
mod desugared;
mod duration;
mod errors;
mod expand;
mod format;
mod function;
mod kind;
mod layer;
mod lock;
mod once;
mod options;
mod output;
mod pairs;
mod retry;
mod suggest;
mod template;
#[cfg(test)]
mod tests;
mod values;

use kind::Kind;
use proc_macro::TokenStream;

/// Runs an async function under a distributed lock.
///
/// The key is computed when the function is called, before its body and before any argument moves into the
/// body. Then the lock is taken and the body runs. The lock is released however the body ends: by a value,
/// `return`, `?`, a panic, or because the future was dropped.
///
/// ```
/// use dblock::{LockError, LockManager, distributed_lock};
/// # pub struct Order { id: u64 }
/// # pub struct Receipt;
///
/// #[derive(Debug)]
/// pub enum OrderError {
///     Lock(LockError),
///     OutOfStock,
/// }
///
/// impl From<LockError> for OrderError {
///     fn from(error: LockError) -> Self {
///         Self::Lock(error)
///     }
/// }
///
/// pub struct Shop {
///     locks: LockManager,
/// }
///
/// impl Shop {
///     #[distributed_lock(key = "order:{order.id}", ttl = "30s", wait = "5s", manager = self.locks)]
///     pub async fn settle(&self, order: &Order) -> Result<Receipt, OrderError> {
///         // No other task, process or machine runs this for the same order.
///         Ok(Receipt)
///     }
/// }
/// ```
///
/// # Arguments
///
/// | argument | value | default | meaning |
/// |---|---|---|---|
/// | `key` | template or text | required, or `keys` | The name of what is locked: 1 to 255 bytes |
/// | `keys` | array of at most 64 of these | | Several keys, taken together: see "Several locks" |
/// | `ttl` | duration, 1 s to 30 days | `"30s"` | Length of the lease: the longest time until others can enter after this process died |
/// | `wait` | duration up to 30 days, or `"forever"` | do not wait | How long the acquire may take in all |
/// | `manager` | expression | see below | The `LockManager`, or a type that derefs to it: a reference, an `Arc` |
/// | `renew` | `bool` | `true` | Whether the lease is renewed while the body runs |
/// | `max_hold` | duration up to 30 days | no limit | The lock is lost when the body runs for longer |
/// | `hold_min` | duration up to 30 days | none | The key stays busy for this long after the grant; the call still returns with the body |
/// | `on_lost` | `"cancel"`, `"signal"` | `"cancel"` | Lost lease: drop the body and fail, or let it go on and tell it |
/// | `tx` | the name of an argument | none | The transaction that the lock ends with: see "Transactions" |
/// | `on_busy` | expression | fail | The return value when somebody else holds the lock, and still does when `wait` is over. A database that did not answer is an error |
/// | `on_error` | closure | `\|e\| Err(e.into())` | Turns a `LockError` into the return value |
/// | `crate` | path | `::dblock` | The path of dblock, for renamed dependencies and re-exports |
///
/// A **duration** is a string of numbers with the units `ms`, `s`, `m`, `h` and `d`, such as `"30s"` or
/// `"1m 30s"`, which is checked when compiling; or any expression of type `Duration`, which is checked when
/// the lock is taken. All units but `ms` may be spelt out: `sec`, `min`, `hour` and `day`, or `second` and
/// `minute`, each with or without an `s` behind it, as in `"30 seconds"` or `"1min"`.
///
/// Without **`manager`**, the call uses the manager of the innermost `LockManager::scope` around it, else the
/// one given to `dblock::install`, else it fails with `LockError::NoManager`.
///
/// Expressions see the function's arguments. All but `on_busy` and `on_error` are evaluated before the body.
/// These two are evaluated when they are needed. They cannot use arguments that the body has moved by then,
/// so use references and `Copy` values.
///
/// # Key templates
///
/// | written | means |
/// |---|---|
/// | `{order_id}` | an argument; names bound by patterns, as in `Path(order_id): Path<u64>`, count |
/// | `{order.id}`, `{pair.0}`, `{self.tenant}` | a field |
/// | `{order.region()}` | a method without arguments |
/// | `{order.lines.len()}` | any chain of these |
/// | `{order_id:08}`, `{name:?}` | with a format of `std::fmt` |
/// | `{REGION}` | a constant or static |
/// | `{{`, `}}` | a brace |
///
/// Anything else is an expression: `key = format!("{}", a + b)`, `key = KEY`, `key = name`. It is borrowed, and
/// may be a `String`, a `&str` or any other `AsRef<str>`.
///
/// Put a separator between two values that a user chooses: `{a}:{b}`, not `{a}{b}`. Without it, the keys of
/// `1`, `23` and `12`, `3` are the same.
///
/// # Return types
///
/// The function must be able to return a lock failure:
///
/// 1. The function returns `Result<_, E>` where `E: From<LockError>`. Aliases of `Result` are fine.
/// 2. `on_error` turns every failure into a return value of any type.
/// 3. `on_busy` gives the return value when somebody else holds the lock, and 1 or 2 serve the other failures.
///
/// A nightly job that must run on one node of many. A failure is reported, except when another node runs the job:
///
/// ```
/// # use dblock::{LockError, distributed_lock};
/// #[distributed_lock(key = "nightly-report", hold_min = "1m", on_busy = Ok(false))]
/// async fn nightly_report() -> Result<bool, LockError> {
///     // …
///     Ok(true)
/// }
/// ```
///
/// # Several locks
///
/// `keys` takes several locks together: all of them or none, whatever order they are written in. Calls that hold nothing
/// else never wait for each other in a circle. When one lease is lost, the body is stopped; `CurrentLock::verify_in` checks
/// all of them. `LockManager::acquire_all` says more, and takes keys whose number is not known before the call.
///
/// ```
/// # use dblock::{LockError, distributed_lock};
/// #[distributed_lock(keys = ["account:{from}", "account:{to}"], wait = "2s")]
/// async fn transfer(from: u64, to: u64, cents: i64) -> Result<(), LockError> {
///     Ok(())
/// }
/// ```
///
/// Stacked attributes take locks one inside the other, for example with different options: the topmost first. They are
/// released in reverse. Write each attribute as `#[distributed_lock(…)]`: behind `cfg_attr`, or imported under another
/// name, the lower one is not recognised and is taken first. Two calls that take the same locks in opposite orders so can
/// wait for each other until `wait` runs out.
///
/// # Transactions
///
/// With `tx = tx` the lock ends with a transaction of the caller's: the argument `tx`, a `&mut Transaction<'_, _>` of sqlx
/// or the `dblock::fence::FenceConnection` of another driver. The release is a statement in it. So the caller's commit frees the
/// lock together with the work, and others enter after that, never before. After a rollback the lock is free too.
/// A second call with the same key in the same transaction re-enters, and never waits for itself.
///
/// ```
/// # use dblock::{LockError, distributed_lock};
/// # #[derive(Debug)]
/// # pub enum OrderError { Lock(LockError), Database(sqlx::Error) }
/// # impl From<LockError> for OrderError {
/// #     fn from(error: LockError) -> Self { Self::Lock(error) }
/// # }
/// # impl From<sqlx::Error> for OrderError {
/// #     fn from(error: sqlx::Error) -> Self { Self::Database(error) }
/// # }
/// use sqlx::{Postgres, Transaction};
///
/// #[distributed_lock(key = "order:{id}", wait = "5s", tx = tx)]
/// async fn settle(tx: &mut Transaction<'_, Postgres>, id: i64) -> Result<(), OrderError> {
///     let update = sqlx::query("UPDATE orders SET settled = true WHERE id = $1");
///     update.bind(id).execute(&mut **tx).await?;
///     Ok(())
/// }
///
/// # async fn caller(pool: &sqlx::PgPool) -> Result<(), OrderError> {
/// let mut tx = dblock::begin(pool).await?;
/// settle(&mut tx, 42).await?;
/// tx.commit().await?; // frees the lock
/// # Ok(()) }
/// ```
///
/// Call it before anything else in the transaction: under REPEATABLE READ, the default of MySQL and MariaDB, a
/// transaction that has read before the lock was taken is refused with a retryable error, and so is a second key. On SQLite a
/// transaction that has written keeps every other writer out, the lock's too, so the call would time out. `wait` must
/// not be `"forever"`, and `hold_min` and `keys` are refused. After an error roll the transaction back. Where the function itself may begin the
/// transaction, use `LockManager::transaction` instead, which also commits. The repository's `docs/guarantees.md`
/// says what holds in detail.
///
/// # Functions
///
/// Supported are free functions, inherent methods, methods of trait impls and default methods of traits, with
/// any receiver, generics, `impl Trait`, patterns and attributes. With `#[async_trait]` put the attribute on the
/// method as usual. Also supported are functions that return `Pin<Box<dyn Future<Output = …>>>` or `impl
/// Future<Output = …>` and end in `Box::pin(async move { … })` or `async move { … }`. Put the attribute above
/// attributes that make the function synchronous, such as `#[tokio::main]`.
///
/// The function behaves as without the attribute: types are inferred, lints apply, values are dropped and the
/// future is `Send` as before. One thing differs: an argument that the body never names is dropped after the
/// release.
///
/// # Errors
///
/// Mistakes are reported at compile time, all those of an attribute at once. The function stays, so that its
/// callers still compile. These are the messages:
///
/// | message | meaning |
/// |---|---|
/// | ``unknown argument `tll`; did you mean `ttl`?`` | See the table above for the names |
/// | `the unit is missing; write "30s" …` | A bare number could be seconds or milliseconds |
/// | ``a lease of "500ms" cannot be renewed in time`` | The shortest ttl is 1 second |
/// | `` `oder_id` is not an argument of this function `` | A template sees arguments and constants, no other names |
/// | `` `Order` doesn't implement `Display` `` | Name a field, such as `{order.id}`, or use `{order:?}` |
/// | `` `Result<(), MyError>` cannot say that the lock failed `` | See "Return types" |
/// | `` `key` and `keys` exclude each other `` | Write all keys into `keys` |
/// | `taking a lock needs an async function` | Add `async`, or put the attribute above the one that removed it |
/// | `the function borrows it: write &mut before the type` | The transaction of `tx` is the caller's |
/// | `` `String` is not a transaction in which a lock can be checked or end `` | `tx` names another argument |
/// | `` borrow of moved value `` at `on_busy` | The body moved the argument; see "Arguments" |
///
/// At run time, every failure is a `LockError`, which tells busy, timeout, lost and a failing store apart.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Lock, args.into(), item.into()).into()
}

/// Runs the body of an async function again when it returns a conflict: a write that found a newer version of its row, a
/// serialization failure, a deadlock.
///
/// ```
/// use dblock::optimistic::{Conflict, ExpectVersion, StaleVersion};
/// use dblock::optimistic_retry;
/// # pub struct Database;
/// # impl Database {
/// #     async fn read(&self, _: u64) -> Result<(i64, i64), StockError> { Ok((1, 7)) }
/// #     async fn write(&self, _: u64, _: i64, _: i64) -> Result<u64, StockError> { Ok(1) }
/// # }
///
/// #[derive(Debug)]
/// pub enum StockError {
///     Stale(StaleVersion),
///     SoldOut,
/// }
///
/// impl Conflict for StockError {
///     fn is_conflict(&self) -> bool {
///         matches!(self, Self::Stale(_))
///     }
/// }
/// # impl std::fmt::Display for StockError {
/// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "{self:?}") }
/// # }
/// # impl From<StaleVersion> for StockError {
/// #     fn from(stale: StaleVersion) -> Self { Self::Stale(stale) }
/// # }
///
/// #[optimistic_retry(times = 5, backoff = "10ms..200ms", within = "2s")]
/// async fn sell(db: &Database, id: u64) -> Result<i64, StockError> {
///     let (left, version) = db.read(id).await?;
///     if left == 0 {
///         return Err(StockError::SoldOut); // no conflict: returned at once
///     }
///     // UPDATE stock SET …, version = version + 1 WHERE id = $1 AND version = $2
///     let changed = db.write(id, left - 1, version).await?;
///     changed.expect_version("stock", id, version)?;
///     Ok(left - 1)
/// }
/// ```
///
/// # Arguments
///
/// | argument | value | default | meaning |
/// |---|---|---|---|
/// | `times` | whole number, 2 or more | `5` | How often the body runs at most, the first run included |
/// | `backoff` | range of durations | `"10ms..200ms"` | The limit of the first pause, and that of the longest. The limit doubles with each run, and a pause is random, from nothing up to the limit |
/// | `within` | duration up to 30 days | `"10s"` | No run starts later than this after the first one. A run that is going on is not stopped |
/// | `crate` | path | `::dblock` | The path of dblock, for renamed dependencies and re-exports |
///
/// A **duration** is written as for [`macro@distributed_lock`]. `within` may also be an expression of type `Duration`. For other
/// values that only the running program knows, call `dblock::optimistic::retry`.
///
/// # Which errors
///
/// The function returns `Result<_, E>` where `E: dblock::optimistic::Conflict`, and the trait tells what is a conflict. The
/// documentation of that trait has the list. Any other error is returned at once: above all one after which the work may have
/// been committed, such as a connection that broke.
///
/// After the last run the function returns that run's error. The log then has a warning with the number of runs, and the error
/// is told the number by `Conflict::exhausted`: `StaleVersion` keeps it in `tries`.
///
/// # What the body must keep
///
/// The body runs again from its start. Its work from before a conflict must be undone with its transaction, or do no harm when it is
/// done twice. So begin one transaction in the body, and let the error leave the body, which drops and thereby rolls back the
/// transaction. A transaction that comes as an argument is refused, because the conflict has ended it.
///
/// # Function arguments
///
/// Each run has the arguments anew, so those that the body uses must be `Copy`: references, numbers, identifiers. `&self` is.
/// An argument that the caller gives away, such as one of an axum handler, can be borrowed where it is bound:
///
/// ```
/// # use std::sync::Arc;
/// # use dblock::{optimistic::StaleVersion, optimistic_retry};
/// # struct Shop; struct State<T>(T);
/// # impl Shop { async fn sell(&self, _: &str) -> Result<(), StaleVersion> { Ok(()) } }
/// #[optimistic_retry]
/// async fn sell(State(ref shop): State<Arc<Shop>>, ref name: String) -> Result<(), StaleVersion> {
///     shop.sell(name).await
/// }
/// ```
///
/// `&mut` arguments are refused: what a failed run wrote there would stay.
///
/// # Together with a lock
///
/// The topmost attribute is the outermost. Put `#[optimistic_retry]` *below* `#[distributed_lock]`: the lock is acquired once and
/// kept over all runs. The conflicts that are left come from those who write without the lock. Put it *above* if the lock ends
/// with the transaction of the body, as with `release_in`: then each run needs a lock of its own. A lock that is busy or lost is
/// no conflict in either order.
///
/// # Errors
///
/// Mistakes are reported at compile time, as by [`macro@distributed_lock`]:
///
/// | message | meaning |
/// |---|---|
/// | ``unknown argument `tiems`; did you mean `times`?`` | See the table above for the names |
/// | `the first pause is longer than the longest` | `backoff` is upside down |
/// | `` `times = 0` never runs the body again `` | The first run counts too |
/// | `` `String` is used up by the first run `` | See "Function arguments" |
/// | `a conflict ends this transaction` | See "What the body must keep" |
/// | `` `Result<(), MyError>` cannot say that there was a conflict `` | Implement `dblock::optimistic::Conflict` for the error |
/// | `running the body again needs an async function` | Add `async`, or put the attribute above the one that removed it |
#[proc_macro_attribute]
pub fn optimistic_retry(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Retry, args.into(), item.into()).into()
}

/// Runs an async function once for each key, and remembers the outcome: a later call returns the stored result.
///
/// While the outcome is remembered, what succeeded does not run again, whatever crashes. What failed runs again with the
/// next call. It needs the feature `run_once` of dblock, and the table of records, which `LockManager::migrate` makes.
///
/// ```
/// use dblock::{LockError, LockManager, run_once};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize)]
/// pub struct Withdrawal { id: u64, cents: u64 }
///
/// #[derive(Serialize, Deserialize)]
/// pub struct Receipt { number: u64 }
///
/// pub struct Payments { locks: LockManager }
///
/// impl Payments {
///     #[run_once(key = "pay:{order.id}", remember = "30d", fingerprint = order, on_crash = "stop", wait = "5s",
///                manager = self.locks)]
///     pub async fn pay(&self, order: &Withdrawal) -> Result<Receipt, LockError> {
///         // Not again for this id, however often the call is repeated.
///         Ok(Receipt { number: 7 })
///     }
/// }
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let payments = Payments { locks: LockManager::connect("memory:").await? };
/// let order = Withdrawal { id: 42, cents: 500 };
/// let (first, again) = (payments.pay(&order).await?, payments.pay(&order).await?);
/// assert_eq!(first.number, again.number);
/// # Ok::<_, LockError>(()) }).unwrap();
/// ```
///
/// # Arguments
///
/// | argument | value | default | meaning |
/// |---|---|---|---|
/// | `key` | template or text | required | Names the work. As for `#[distributed_lock]`; it is the key of a lock too |
/// | `remember` | duration, 1 s to ten years | required | For how long the outcome is kept |
/// | `on_crash` | `"retry"`, `"stop"`, `"complete_in"` | required | What becomes of a run whose process died in the body: it runs again; calls fail with `RunError::InDoubt` until `LockManager::resolve`; it runs again, and all its work is in the transaction that it gives to `Run::complete_in` |
/// | `fingerprint` | expression that is `Serialize` | none | A call with the same key and another value fails with `RunError::KeyReused` |
/// | `tick` | expression that is `Into<SystemTime>` | none | The time for which scheduled work is done. A tick older than `remember` by the store's clock is refused with `RunError::TickTooOld` |
/// | `max_attempts` | number | no limit | How often it may begin. Counted in its record: when that is deleted, as by `Resolution::RunAgain`, from 1 again |
/// | `backoff` | duration up to 30 days | none | The pause after the first failure. It doubles with each failure, up to a day |
/// | `ttl`, `wait`, `manager`, `renew`, `max_hold`, `on_busy`, `on_error`, `crate` | | | As for `#[distributed_lock]`. `wait` is how long a call waits for the result of another one |
///
/// The function returns `Result<T, E>` where `T` is `Serialize + DeserializeOwned` and `E` is `Display` and
/// `From<LockError>`. With `T` = `Once<U>` its callers learn whether it ran or was replayed; its body then returns
/// `Once::Ran(value)`, or `value.into()`. Only a returned `Err` is a failure; a panic, a dropped future and a lost lease are
/// crashes. `dblock::current_run()` is the run, in the body.
///
/// `#[distributed_lock]` below it takes further locks inside the run.
#[proc_macro_attribute]
pub fn run_once(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(Kind::Once, args.into(), item.into()).into()
}
