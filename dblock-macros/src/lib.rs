//! The `#[distributed_lock]` attribute of dblock. Use it through that crate, which re-exports it.
//!
//! An attribute is read (`pairs`, `args`, `values`, `duration`). Its function is split (`function`, `desugared`) and
//! checked (`check`). The key template is resolved against the function's arguments (`template`, `format`), and
//! the parts are put together (`expand`, `lock`, `options`, `output`, `capture`). Mistakes are collected
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
mod lock;
mod options;
mod output;
mod pairs;
mod suggest;
mod template;
#[cfg(test)]
mod tests;
mod values;

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
/// | `key` | template or text | required | The name of what is locked: 1 to 255 bytes |
/// | `ttl` | duration, 1 s to 30 days | `"30s"` | Length of the lease: the longest time until others can enter after this process died |
/// | `wait` | duration up to 30 days, or `"forever"` | do not wait | How long the acquire may take in all |
/// | `manager` | expression | see below | The `LockManager`, or a type that derefs to it: a reference, an `Arc` |
/// | `renew` | `bool` | `true` | Whether the lease is renewed while the body runs |
/// | `max_hold` | duration up to 30 days | no limit | The lock is lost when the body runs for longer |
/// | `hold_min` | duration up to 30 days | none | The key stays busy for this long after the grant; the call still returns with the body |
/// | `on_lost` | `"cancel"`, `"signal"` | `"cancel"` | Lost lease: drop the body and fail, or let it go on and tell it |
/// | `on_busy` | expression | fail | The return value when the lock is busy or `wait` ran out |
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
/// Stacked attributes take several locks, the topmost first, and release them in reverse. Write each attribute as
/// `#[distributed_lock(…)]`: behind `cfg_attr`, or imported under another name, the lower one is not recognised and is
/// taken first. Two calls that take the same locks in opposite orders can wait for each other until `wait` runs out, so
/// sort the keys where you can.
///
/// ```
/// # use dblock::{LockError, distributed_lock};
/// #[distributed_lock(key = format!("account:{}", from.min(to)), wait = "2s")]
/// #[distributed_lock(key = format!("account:{}", from.max(to)), wait = "2s")]
/// async fn transfer(from: u64, to: u64, cents: i64) -> Result<(), LockError> {
///     Ok(())
/// }
/// ```
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
/// | `taking a lock needs an async function` | Add `async`, or put the attribute above the one that removed it |
/// | `` borrow of moved value `` at `on_busy` | The body moved the argument; see "Arguments" |
///
/// At run time, every failure is a `LockError`, which tells busy, timeout, lost and a failing store apart.
#[proc_macro_attribute]
pub fn distributed_lock(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::attribute(args.into(), item.into()).into()
}
