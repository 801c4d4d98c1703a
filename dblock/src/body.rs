//! Running a body under a lock: it is stopped when the lease is lost, and the lock is released however it
//! ends.
//!
//! These futures are written by hand, so that each stores its body once: an `async fn` that takes a future
//! and awaits it stores it twice.

use std::future::Future;
use std::mem;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::CatchUnwind;
use pin_project_lite::pin_project;
use tracing::instrument::Instrumented;
use tracing::{Instrument, Span};

use crate::OnLost;
use crate::chain::{Link, Linked};
use crate::engine::{Hold, Lease, Unconfirmed};
use crate::{LockError, LostReason};

/// Longest time that a return, `?` or panic waits for its release.
pub(crate) const RELEASE_TIMEOUT: Duration = Duration::from_secs(3);

/// A lease that ended before the body under it did.
pub(crate) type Loss = (Lease, LostReason);

/// How a supervised body ended.
pub(crate) enum Ended<T> {
    /// It was done before the local deadline.
    InTime(T),
    /// It was done, but its lease was lost before.
    Late(T, Loss),
    /// It was stopped.
    Stopped(Loss),
}

impl<T> Ended<T> {
    pub(crate) fn after(value: T, loss: Option<Loss>) -> Self {
        match loss {
            None => Self::InTime(value),
            Some(loss) => Self::Late(value, loss),
        }
    }

    /// Maps the value, and keeps how the body ended.
    #[cfg(feature = "run_once")]
    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U) -> Ended<U> {
        match self {
            Self::InTime(value) => Ended::InTime(map(value)),
            Self::Late(value, loss) => Ended::Late(map(value), loss),
            Self::Stopped(loss) => Ended::Stopped(loss),
        }
    }

    /// A result counts only if the body finished in time.
    pub(crate) fn in_time(self) -> Result<T, LockError> {
        match self {
            Self::InTime(value) => Ok(value),
            Self::Late(_, (lease, reason)) | Self::Stopped((lease, reason)) => Err(lease.lost(reason)),
        }
    }
}

/// Acquires one lock or several, runs `body` under them, ends the holds and waits for the confirmation.
pub(crate) fn run<A, F>(acquire: A, body: F) -> impl Future<Output = Result<F::Output, LockError>>
where
    A: Future<Output = Result<Vec<Hold>, LockError>>,
    F: Future,
{
    Run::Acquiring {
        acquire,
        body: Some(body),
        finish: Some(finish),
    }
}

pin_project! {
    #[project = RunProjection]
    enum Run<A, F, Finish, L> {
        Acquiring { #[pin] acquire: A, body: Option<F>, finish: Option<Finish> },
        // The body is dropped before the holds.
        Running { #[pin] body: Supervised<Caught<F>>, holds: Vec<Hold>, finish: Option<Finish> },
        Leaving { #[pin] leave: L },
    }
}

pub(crate) type Caught<F> = CatchUnwind<AssertUnwindSafe<Linked<Instrumented<F>>>>;

impl<A, F, Finish, L> Future for Run<A, F, Finish, L>
where
    A: Future<Output = Result<Vec<Hold>, LockError>>,
    F: Future,
    Finish: FnOnce(Vec<Hold>, Ended<std::thread::Result<F::Output>>) -> L,
    L: Future<Output = Result<F::Output, LockError>>,
{
    type Output = Result<F::Output, LockError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        const ONCE: &str = "each state is left once";
        loop {
            let next = match self.as_mut().project() {
                RunProjection::Acquiring {
                    acquire,
                    body,
                    finish,
                } => {
                    let holds = ready!(acquire.poll(context))?;
                    let body = inside(&holds, body.take().expect(ONCE));
                    Run::Running {
                        body,
                        holds,
                        finish: finish.take(),
                    }
                }
                RunProjection::Running { body, holds, finish } => {
                    let ended = ready!(body.poll(context));
                    let finish = finish.take().expect(ONCE);
                    Run::Leaving {
                        leave: finish(mem::take(holds), ended),
                    }
                }
                RunProjection::Leaving { leave } => return leave.poll(context),
            };
            // Drops the former state: a finished body is dropped before its release is awaited.
            self.set(next);
        }
    }
}

/// Runs `body` under the locks: in the call chain, in a span for each, stopped on loss, and with its panic
/// caught.
pub(crate) fn inside<F: Future>(holds: &[Hold], body: F) -> Supervised<Caught<F>> {
    let body = AssertUnwindSafe(linked(holds, body)).catch_unwind();
    supervise(holds.iter().map(Hold::lease), body)
}

fn linked<F: Future>(holds: &[Hold], body: F) -> Linked<Instrumented<F>> {
    Link::inside_current(holds).scope(body.instrument(span(holds)))
}

fn span(holds: &[Hold]) -> Span {
    holds.iter().map(Hold::lease).fold(Span::none(), |around, lease| {
        let _around = around.enter();
        tracing::debug_span!("distributed_lock", key = %lease.key().typed(), owner = %lease.owner(),
            fence_token = lease.fence_token())
    })
}

/// Runs a body that is not async under the locks. A lease that is lost does not stop it.
pub(crate) fn run_blocking<T>(
    holds: Vec<Hold>,
    body: impl FnOnce() -> T,
) -> (Vec<Hold>, Ended<std::thread::Result<T>>) {
    let span = span(&holds);
    let body = || Link::run_on_thread(&holds, || span.in_scope(body));
    let ended = std::panic::catch_unwind(AssertUnwindSafe(body));
    let ended = Ended::after(ended, loss(&holds));
    (holds, ended)
}

/// Runs `body` under a lock that ends with a transaction: the caller ends the hold.
#[cfg(feature = "sql")]
pub(crate) fn in_transaction<F: Future>(
    hold: &Hold,
    body: F,
) -> impl Future<Output = Result<F::Output, LockError>> + use<F> {
    supervise([hold.lease()], linked(std::slice::from_ref(hold), body)).map(Ended::in_time)
}

/// Ends the holds, waits for the confirmation, and gives the value or resumes the panic.
pub(crate) async fn finish<T>(
    holds: Vec<Hold>,
    ended: Ended<std::thread::Result<T>>,
) -> Result<T, LockError> {
    let returned = matches!(ended, Ended::InTime(Ok(_)));
    let unconfirmed = leave(holds, returned).await;
    match ended {
        // A panic is a bug, and must show even when the lease is lost.
        Ended::InTime(Err(panic)) | Ended::Late(Err(panic), _) => resume_unwind(panic),
        Ended::InTime(Ok(value)) => {
            for (lease, left) in unconfirmed {
                tracing::warn!(key = %lease.key().typed(), owner = %lease.owner(), fence_token = lease.fence_token(),
                    held = ?lease.held_for(), ?left, "the body finished in time, but its release is not confirmed");
            }
            Ok(value)
        }
        Ended::Late(Ok(_), (lease, reason)) | Ended::Stopped((lease, reason)) => Err(lease.lost(reason)),
    }
}

/// Runs `body` until it is done or one of the leases that stop their bodies is lost.
pub(crate) fn supervise<'l, F>(leases: impl IntoIterator<Item = &'l Lease>, body: F) -> Supervised<F> {
    let watched = stopping(leases)
        .map(|lease| (lease.clone(), Box::pin(lease.ended()) as Ending))
        .collect();
    Supervised { body, watched }
}

/// The first lost one of the leases that stop their bodies.
pub(crate) fn loss(holds: &[Hold]) -> Option<Loss> {
    first_lost(stopping(holds.iter().map(Hold::lease)))
}

/// Those whose loss stops their body.
fn stopping<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> impl Iterator<Item = &'l Lease> {
    let leases = leases.into_iter();
    leases.filter(|lease| lease.on_lost() == OnLost::Cancel)
}

fn first_lost<'l>(leases: impl IntoIterator<Item = &'l Lease>) -> Option<Loss> {
    let mut leases = leases.into_iter();
    leases.find_map(|lease| lease.lost_reason().map(|reason| (lease.clone(), reason)))
}

/// Completes when a lease has ended.
type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

pin_project! {
    /// From [`supervise`].
    pub(crate) struct Supervised<F> {
        #[pin]
        body: F,
        watched: Vec<(Lease, Ending)>,
    }
}

impl<F: Future> Future for Supervised<F> {
    type Output = Ended<F::Output>;

    /// A body that finishes before the local deadline keeps its result. One that finishes later has lost the
    /// lease.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        for (_, ended) in this.watched.iter_mut() {
            // Polled only for the wake-up. The leases themselves say whether they have ended.
            let _ = ended.as_mut().poll(context);
        }
        let loss = |watched: &[(Lease, _)]| first_lost(watched.iter().map(|(lease, _)| lease));
        if let Some(loss) = loss(this.watched) {
            return Poll::Ready(Ended::Stopped(loss));
        }
        let value = ready!(this.body.poll(context));
        Poll::Ready(Ended::after(value, loss(this.watched)))
    }
}

/// Ends holds of one engine and waits for that in bounded time. Returns those that are not confirmed: neither
/// by the store, nor by a local hand-over, which happens only after a body that `returned` in time.
pub(crate) async fn leave(holds: Vec<Hold>, returned: bool) -> Vec<(Lease, Unconfirmed)> {
    let Some(first) = holds.first() else {
        return Vec::new();
    };
    let until = first.lease().now() + RELEASE_TIMEOUT;
    Hold::leave(holds, until, returned).await
}
