//! The code that `#[optimistic_retry]` generates needs this beside [`Retry`], for the messages of the
//! compiler.

use std::ops::ControlFlow;

use tokio::time::Sleep;

use super::Conflict;
pub use super::retry::Retry;

/// A return type that can be a conflict.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot say that there was a conflict",
    label = "expected `Result<_, E>` where `E: dblock::optimistic::Conflict`",
    note = "return a `Result`, and implement `Conflict` for its error by asking the errors inside: `fn is_conflict(&self) -> bool {{ matches!(self, \
            Self::Database(error) if error.is_conflict()) }}`"
)]
pub trait Repeatable: Sized {
    /// Decides whether the call returns the result of a run, or the body runs again after a pause.
    fn after(self, retry: &mut Retry) -> ControlFlow<Self, Sleep>;
}

#[diagnostic::do_not_recommend]
impl<T, E: Conflict> Repeatable for Result<T, E> {
    fn after(self, retry: &mut Retry) -> ControlFlow<Self, Sleep> {
        retry.after(self)
    }
}

/// An argument that every run of the body can use.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is used up by the first run, and after a conflict the body runs again",
    label = "the next run could not have it",
    note = "take a reference, such as `&str` for `String` and `&self` for `self`, or borrow the argument where it is bound: \
            `ref name: {Self}`; the body can clone what it has to give away. A type parameter needs the bound `Copy`"
)]
pub trait Reusable {
    /// Called only so that the compiler checks the bound.
    fn reusable(&self) {}
}

#[diagnostic::do_not_recommend]
impl<T: Copy> Reusable for T {}
