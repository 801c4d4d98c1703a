//! Running a body under a lock: it is stopped when the lease is lost, and the lock is released however it
//! ends.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Instrument;

use crate::chain::Link;
use crate::engine::lease::{Hold, Lease, Left};
use crate::error::{LockError, LostReason};
use crate::options::OnLost;

/// How long a return, `?` or panic waits for its release at most.
const RELEASE_PATIENCE: Duration = Duration::from_secs(2);

/// Runs `body` inside of `hold`, then ends the hold and waits for the row to say so.
pub(crate) async fn run<T>(hold: Hold, body: impl Future<Output = T>) -> Result<T, LockError> {
    let lease = Arc::clone(hold.lease());
    let link = Link::inside_current(&lease, hold.engine());
    let terms = &lease.terms;
    let span = tracing::debug_span!("distributed_lock", key = %terms.key, owner = %terms.owner,
        fence_token = terms.fence_token);
    let body = AssertUnwindSafe(link.scope(body).instrument(span)).catch_unwind();
    let ended = supervise(std::slice::from_ref(&lease), body).await;
    let unfinished = leave(hold).await;
    match ended {
        Ok(Ok(value)) => {
            if let Some(left) = unfinished {
                tracing::warn!(key = %terms.key, owner = %terms.owner, fence_token = terms.fence_token,
                    held = ?lease.held(), ?left, "the body finished in time, but its release is not confirmed");
            }
            Ok(value)
        }
        Ok(Err(panic)) => resume_unwind(panic),
        Err((lease, reason)) => Err(lease.lost(reason)),
    }
}

/// Runs `body` until it is done or one of the leases that stop their bodies is lost. A body that is done
/// before the local deadline is done; one that comes later has lost.
pub(crate) async fn supervise<T>(
    leases: &[Arc<Lease>],
    body: impl Future<Output = T>,
) -> Result<T, (Arc<Lease>, LostReason)> {
    let stopping = || {
        leases
            .iter()
            .filter(|lease| lease.terms.on_lost == OnLost::Cancel)
    };
    let lost = || stopping().find_map(|lease| lease.lost_reason().map(|reason| (Arc::clone(lease), reason)));
    let mut losses: Vec<_> = stopping().map(|lease| Box::pin(lease.ended())).collect();
    let mut body = pin!(body);
    poll_fn(|context| {
        for loss in &mut losses {
            // Only for the wake-up: what counts is asked of the leases themselves.
            let _ = loss.as_mut().poll(context);
        }
        if let Some(lost) = lost() {
            return Poll::Ready(Err(lost));
        }
        body.as_mut()
            .poll(context)
            .map(|value| lost().map_or(Ok(value), Err))
    })
    .await
}

/// Ends a hold and waits for that in bounded time. `None` when the row says so.
pub(crate) async fn leave(hold: Hold) -> Option<Left> {
    let rest = hold.lease().store_end().saturating_duration_since(Instant::now());
    match hold.leave(rest.min(RELEASE_PATIENCE)).await {
        Left::Confirmed => None,
        left => Some(left),
    }
}
