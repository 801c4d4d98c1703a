//! The frame of most locks: the acquire gives what the release needs, a guard or the like.

use anyhow::Context as _;

use super::{Client, Step};

/// One task's way to one lock.
pub(super) trait Guarded: Send {
    type Guard: Send;

    fn acquire(&mut self) -> impl Future<Output = anyhow::Result<Self::Guard>> + Send;

    fn release(&mut self, guard: Self::Guard) -> impl Future<Output = anyhow::Result<()>> + Send;
}

struct Task<L: Guarded> {
    lock: L,
    guard: Option<L::Guard>,
}

pub(super) fn client(lock: impl Guarded + 'static) -> Box<dyn Client> {
    Box::new(Task { lock, guard: None })
}

impl<L: Guarded> Client for Task<L> {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            self.guard = Some(self.lock.acquire().await?);
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            let guard = self.guard.take().context("locked before")?;
            self.lock.release(guard).await
        })
    }
}
