//! Shared holds of many processes. [`random_requests_are_carried_out_by_the_rules`](crate::random_requests_are_carried_out_by_the_rules)
//! has those of a few.

use dblock_core::store::Outcome;

use super::AnyFixture;
use super::context::{Asker, LONG, existing, one};

const PROCESSES: u32 = 500;

/// The limit is exact, and all of the holds, with names of the greatest length, fit into the row.
pub async fn five_hundred_processes_share_a_key(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    if !store.capabilities().shares {
        return;
    }
    let holder = "h".repeat(255);
    let asks = |asker: &Asker, limit| asker.acquire_with(LONG, |ask| ask.limit = Some(limit));
    let askers: Vec<Asker> = (0..PROCESSES)
        .map(|_| Asker::with_holder("crowded", &holder))
        .collect();
    for asker in &askers {
        let outcome = one(&*store, asks(asker, PROCESSES)).await;
        assert!(matches!(outcome, Outcome::Granted { .. }), "{outcome:?}");
    }
    let late = Asker::new("crowded");
    let refused = one(&*store, asks(&late, PROCESSES)).await;
    assert!(matches!(refused, Outcome::Busy(_)), "{refused:?}");
    let row = existing(&*store, &late.key).await;
    assert_eq!((row.shared.len(), row.reentrant_count), (500, PROCESSES));
    one(&*store, askers[250].release()).await;
    let let_in = one(&*store, asks(&late, PROCESSES)).await;
    assert!(matches!(let_in, Outcome::Granted { .. }), "{let_in:?}");
}
