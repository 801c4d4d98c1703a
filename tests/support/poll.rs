//! Dropping futures at a chosen await.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// When a future is dropped after its last poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropWhen {
    /// While it still waits.
    Waiting,
    /// When it was woken, before its next poll: nobody takes what it waited for.
    Woken,
    /// So much later, without a poll: nobody takes what arrives meanwhile.
    Later(Duration),
}

/// Polls `future` at most `polls` times and drops it. Returns its value if it was done before.
pub async fn drop_after<F: Future>(future: F, polls: usize, when: DropWhen) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    let value = poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending if left == 0 && when != DropWhen::Woken => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if let (None, DropWhen::Later(length)) = (&value, when) {
        tokio::time::sleep(length).await;
    }
    value
}
