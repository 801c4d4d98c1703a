//! Callers that go away while the store is asked, as the engine does when the time limit of a batch has passed.

use std::pin::pin;

use dblock_core::store::Outcome;
use futures_util::poll;
use tokio::task::yield_now;

use super::AnyFixture;
use super::context::{Asker, LONG, granted, one, within};

/// A request that is dropped may have been carried out, or may still be. The store can be used as before: each later
/// request gets its own answer, and a release by the lease's id ends what the dropped one has left.
pub async fn dropped_requests_leave_the_store_usable(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    for round in 0..24 {
        let name = format!("dropped {round}");
        let (dropped, next) = (Asker::new(&name), Asker::new(&name));
        {
            let requests = [dropped.acquire(LONG)];
            let mut answers = pin!(store.apply(&requests));
            // It is about to be sent, on its way, or answered.
            for _ in 0..=round % 8 {
                if poll!(answers.as_mut()).is_ready() {
                    break;
                }
                yield_now().await;
            }
        }
        let beside = Asker::new(&format!("beside {round}"));
        granted(&*store, beside.acquire(LONG)).await;
        within("the dropped request to be over", async {
            loop {
                let released = one(&*store, dropped.release()).await;
                assert!(
                    matches!(released, Outcome::Released(_) | Outcome::Lost),
                    "a release was answered with {released:?}"
                );
                match one(&*store, next.acquire(LONG)).await {
                    Outcome::Granted { .. } => break,
                    // The dropped one was carried out after its release.
                    Outcome::Busy(holder) if dropped.is(&holder) => {}
                    other => panic!("an acquire was answered with {other:?}"),
                }
            }
        })
        .await;
    }
}
