//! The functions that generated code may call: the macro's whole contract. Not for people.
//!
//! The attribute writes, with every name of dblock behind `__dblock`:
//!
//! ```text
//! {
//!     use ::dblock::__private as __dblock;
//!     let key = format(format_args!("order:{}", order.id));
//!     let manager = match &self.locks { locks => manager(&*locks) };
//!     let options = LockOptions::new().ttl(Duration::from_millis(30000)).function("module::settle");
//!     let result = run(Some(&manager), key, options, async move {
//!         if false { let used = order; let used = self; return declared::<Result<Receipt, OrderError>>(); }
//!         /* the body */
//!     }).await;
//!     <Result<Receipt, OrderError> as Fallible>::or_error(result)
//! }
//! ```
//!
//! With `keys = […]`, `key` is an array of such keys, and `run_all` takes the place of `run`.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;

use crate::body;
#[cfg(feature = "sql")]
use crate::engine::{EndsOthers, Hold};
#[cfg(feature = "sql")]
use crate::fence::{self, FenceConnection};

pub use std::concat;
pub use std::format_args;
pub use std::module_path;
pub use std::ops::ControlFlow::{Break, Continue};
pub use std::option::Option::{None, Some};
pub use std::result::Result::{Err, Ok};
pub use std::time::Duration;

pub use crate::optimistic::RetryOptions;
pub use crate::optimistic::attribute::{Repeatable, Retry, Reusable};
pub use crate::{LockError, LockKeys, LockManager, LockOptions, OnLost};
#[cfg(feature = "run_once")]
pub use crate::{OnCrash, RunOptions};

/// The key of a template. A plain `String`, because `fmt::Arguments` may not live across an await of a
/// future that is `Send`.
pub fn format(template: fmt::Arguments<'_>) -> String {
    fmt::format(template)
}

/// The key from an expression. The expression is borrowed, so that the body can still use it.
pub fn key(key: &(impl KeyText + ?Sized)) -> String {
    key.text().to_owned()
}

/// The types that `key = expression` accepts.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock key",
    label = "expected a `String`, a `&str` or another type that is `AsRef<str>`",
    note = "to format a value, write a template such as `key = \"order:{{order.id}}\"` or `key = format!(…)`"
)]
pub trait KeyText {
    /// The key's text.
    fn text(&self) -> &str;
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<str> + ?Sized> KeyText for T {
    fn text(&self) -> &str {
        self.as_ref()
    }
}

/// The manager that `manager = …` names: a `LockManager`, or any type that derefs to one. It is cloned, which
/// is cheap, so that the body can move the value that it was borrowed from.
pub fn manager(manager: &LockManager) -> LockManager {
    manager.clone()
}

/// Never called. It gives a `return` its type.
pub fn declared<T>() -> T {
    unreachable!("stands behind `if false`")
}

/// The handler of `on_error`, called with the error. The bound tells the compiler the closure's argument.
pub fn on_error<T>(handler: impl FnOnce(LockError) -> T, error: LockError) -> T {
    handler(error)
}

/// A return type that can say that the lock failed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that the lock failed",
    label = "expected `Result<_, E>` where `E: From<dblock::LockError>`",
    note = "one of these ways out:\n\
            1. implement `From<dblock::LockError>` for the error type, such as with `#[from]` of thiserror\n\
            2. turn every failure into a return value: `on_error = |error| …`\n\
            3. for a lock that is busy, return a value of your own with `on_busy = …`; \
            the other failures still need 1 or 2"
)]
pub trait Fallible: Sized {
    /// The body's result, or the failure as this type.
    fn or_error(result: Result<Self, LockError>) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> Fallible for Result<T, E> {
    fn or_error(result: Result<Self, LockError>) -> Self {
        result.unwrap_or_else(|error| Err(error.into()))
    }
}

/// The manager that the call names, else the innermost scope's, else the installed one.
fn manager_or_default(manager: Option<&LockManager>) -> Result<Cow<'_, LockManager>, LockError> {
    manager.map_or_else(
        || LockManager::default_manager().map(Cow::Owned),
        |manager| Ok(Cow::Borrowed(manager)),
    )
}

/// Takes the lock, runs the body under it, and releases.
///
/// Without a manager it uses the innermost scope's, else the installed one.
///
/// # Errors
/// Every reason for which the body did not run to its end under the lock.
pub fn run<F: Future>(
    manager: Option<&LockManager>,
    key: String,
    options: LockOptions,
    body: F,
) -> impl Future<Output = Result<F::Output, LockError>> {
    let acquire = async move {
        let manager = manager_or_default(manager)?;
        let key = manager.key(&key)?;
        Ok(vec![manager.hold(&key, &options).await?])
    };
    body::run(acquire, body)
}

/// As [`run`], with the locks on several keys.
///
/// # Errors
/// As [`run`].
pub fn run_all<F: Future>(
    manager: Option<&LockManager>,
    keys: impl IntoIterator<Item = String>,
    options: LockOptions,
    body: F,
) -> impl Future<Output = Result<F::Output, LockError>> {
    // An array of many keys would make the future large.
    let keys: Vec<String> = keys.into_iter().collect();
    let acquire = async move {
        let manager = manager_or_default(manager)?;
        let (holds, _) = manager.lock(keys).options(&options).holds().await?;
        Ok(holds.into_vec())
    };
    body::run(acquire, body)
}

/// As [`run`], for a function that is not async.
///
/// # Errors
/// As [`run`].
#[track_caller]
pub fn blocking_run<T>(
    manager: Option<&LockManager>,
    key: impl LockKeys,
    options: &LockOptions,
    body: impl FnOnce() -> T,
) -> Result<T, LockError> {
    let manager = manager_or_default(manager)?;
    manager.lock(key).options(options).blocking_run(body)
}

/// What [`blocking_run`] gave: `no_future(Returned(&result).given())`.
#[derive(Debug)]
pub struct Returned<'r, T>(pub &'r Result<T, LockError>);

impl<T: Future> Returned<'_, T> {
    /// A future.
    pub fn given(&self) -> Given<T> {
        Given(PhantomData)
    }
}

/// See [`Returned`]. A method of the type comes before that of a trait.
pub trait NoFuture {
    /// Nothing to object to.
    fn given(&self) -> Given<()> {
        Given(PhantomData)
    }
}

impl<T> NoFuture for Returned<'_, T> {}

/// Refuses a future, whose work would be done without the lock.
pub fn no_future<T: Done>(_: T) {}

/// The body has done its work.
#[diagnostic::on_unimplemented(
    message = "this function returns a future, which would do its work without the lock",
    label = "write `async fn`, or a type that the attribute understands: `Pin<Box<dyn Future<Output = …>>>`"
)]
pub trait Done {}

#[diagnostic::do_not_recommend]
impl Done for Given<()> {}

/// A function for locks that end with a transaction.
#[cfg(feature = "sql")]
#[doc(hidden)]
#[macro_export]
macro_rules! __sql {
    ($function:ident) => {
        $crate::__private::$function
    };
}

#[cfg(not(feature = "sql"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __sql {
    ($function:ident) => {
        ::core::compile_error!(
            "`tx` needs the database's feature of dblock: `postgres`, `mysql` or `sqlite`; another driver's crate, such as \
             `dblock-tokio-postgres`, brings it"
        )
    };
}

pub use crate::__sql as sql;

/// The argument of `tx = …`. If it is a transaction, the caller must have lent it:
/// `borrowed(Argument(&tx).given())`.
///
/// Whether it is one is for [`enter_in`], so that one mistake is one error.
#[cfg(feature = "sql")]
#[derive(Debug)]
pub struct Argument<'a, T>(pub &'a T);

#[cfg(feature = "sql")]
impl<T: FenceConnection> Argument<'_, T> {
    /// A transaction by value.
    pub fn given(&self) -> Given<T> {
        Given(PhantomData)
    }
}

/// See [`Argument`]. A method of the type comes before that of a trait.
pub trait NoTransaction {
    /// Nothing to object to.
    fn given(&self) -> Given<&mut ()> {
        Given(PhantomData)
    }
}

#[cfg(feature = "sql")]
impl<T> NoTransaction for Argument<'_, T> {}

/// The type of an argument.
#[derive(Debug)]
pub struct Given<T>(PhantomData<T>);

/// Refuses a transaction by value.
#[cfg(feature = "sql")]
pub fn borrowed<T: Borrowed>(_: T) {}

/// The caller has lent the argument.
#[cfg(feature = "sql")]
#[diagnostic::on_unimplemented(
    message = "the caller begins and commits the transaction, so the function borrows it",
    label = "this argument is no `&mut`; write `&mut` before its type"
)]
pub trait Borrowed {}

#[cfg(feature = "sql")]
#[diagnostic::do_not_recommend]
impl<T: ?Sized> Borrowed for Given<&mut T> {}

/// Borrows the argument of `tx = …` anew, as `&mut *tx`. A method needs no `mut` in front of the argument, and
/// gives no second error where the argument is no reference.
pub trait Lend {
    /// Its borrow.
    fn dblock_lend(&mut self) -> &mut Self {
        self
    }
}

impl<T: ?Sized> Lend for T {}

/// As [`Lend`], of transactions only.
pub trait LendToBody {
    /// Its borrow.
    fn dblock_lend_to_body(&mut self) -> &mut Self;
}

#[cfg(feature = "sql")]
impl<T: FenceConnection + ?Sized> LendToBody for T {
    fn dblock_lend_to_body(&mut self) -> &mut Self {
        self
    }
}

/// What is no borrowed transaction keeps its type, so that the body has no errors too. The compiler tries this
/// method after that of [`LendToBody`].
pub trait NoLoan: Sized {
    /// Never called, because that does not compile.
    #[must_use]
    fn dblock_lend_to_body(&self) -> Self {
        unreachable!("an argument of `tx` is a transaction")
    }
}

impl<T> NoLoan for T {}

/// As [`run`], step by step: takes a lock that ends with a transaction of the caller's.
///
/// # Errors
/// Those of the acquire, and of the statement in the transaction.
#[cfg(feature = "sql")]
pub async fn enter_in(
    manager: Option<&LockManager>,
    key: String,
    options: LockOptions,
    tx: &mut dyn FenceConnection,
) -> Result<InTransaction, LockError> {
    let manager = manager_or_default(manager)?;
    let hold = manager.hold_in(&key, &options, tx).await?;
    // A nested call leaves the lock to the outer one.
    let is_outermost = hold.lease().hold_count() == 1;
    Ok(InTransaction {
        _ends_others: is_outermost.then(|| hold.ends_others()),
        hold,
    })
}

/// A lock that ends with a transaction.
#[cfg(feature = "sql")]
#[derive(Debug)]
pub struct InTransaction {
    _ends_others: Option<EndsOthers>,
    hold: Hold,
}

/// Runs the body.
///
/// # Errors
/// [`LockError::Lost`].
#[cfg(feature = "sql")]
pub fn run_in<F: Future>(
    hold: &InTransaction,
    body: F,
) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
    body::in_transaction(&hold.hold, body)
}

/// The body has ended. `failed` says of its value whether it is an error.
///
/// # Errors
/// That of the body's lock, or of the statement in the transaction. An error of the body's own comes before
/// the latter.
#[cfg(feature = "sql")]
pub async fn end_in<T>(
    hold: InTransaction,
    result: Result<T, LockError>,
    failed: impl FnOnce(&T) -> bool,
    tx: &mut dyn FenceConnection,
) -> Result<T, LockError> {
    let value = result?;
    if !fence::is_kept_at_once(&hold.hold)
        && let Err(error) = fence::keep(std::slice::from_ref(&hold.hold), tx).await
    {
        if !failed(&value) {
            return Err(error);
        }
        tracing::debug!(key = %hold.hold.lease().key().typed(), %error,
            "the body failed, and its lock does not end with the transaction");
    }
    Ok(value)
}

/// What a body gave: `Value(&value).is_error()` asks whether that is an `Err`. A method of the type comes
/// before that of a trait, so every other type answers no.
#[derive(Debug)]
pub struct Value<'v, T>(pub &'v T);

impl<T, E> Value<'_, Result<T, E>> {
    /// Whether the body has failed.
    pub fn is_error(&self) -> bool {
        self.0.is_err()
    }
}

/// See [`Value`].
pub trait NoResult {
    /// No.
    fn is_error(&self) -> bool {
        false
    }
}

impl<T> NoResult for Value<'_, T> {}

/// A return type that says whether a run succeeded.
#[cfg(feature = "run_once")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say whether the run succeeded",
    label = "expected `Result<_, E>` where `E: Display + From<dblock::LockError>`",
    note = "only a returned `Err` is a failure, after which the body runs again"
)]
pub trait RunResult {
    /// The value of a success.
    type Value;
    /// The error of a failure.
    type Error;
    /// Turns the body's value into a `Result`.
    ///
    /// # Errors
    /// The body's own.
    fn result(self) -> Result<Self::Value, Self::Error>;
    /// Turns the `Result` of a run into such a value.
    fn of(result: Result<Self::Value, Self::Error>) -> Self;
}

#[cfg(feature = "run_once")]
#[diagnostic::do_not_recommend]
impl<T, E> RunResult for Result<T, E> {
    type Value = T;
    type Error = E;

    fn result(self) -> Self {
        self
    }

    fn of(result: Self) -> Self {
        result
    }
}

/// Runs the body, unless an earlier run succeeded: then it gives the stored result.
///
/// # Errors
/// Every reason for which there is neither.
#[cfg(feature = "run_once")]
pub fn run_once<R, F>(
    manager: Option<&LockManager>,
    key: String,
    options: RunOptions,
    body: F,
) -> impl Future<Output = Result<R, LockError>>
where
    R: RunResult<Value: crate::Remembered, Error: fmt::Display>,
    F: Future<Output = R>,
{
    // In a box, because each future around it would store it once more.
    let body = Box::pin(body);
    async move {
        let manager = manager_or_default(manager)?;
        let call = crate::once::OnceCall::new(&manager, &key, options)?;
        call.run(async |_| body.await.result()).await.map(R::of)
    }
}
