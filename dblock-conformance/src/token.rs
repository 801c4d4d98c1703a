//! Fence tokens only grow.

use super::AnyFixture;
use super::context::{
    Asker, LONG, SHORT, existing, force_release, granted, granted_briefly, one, until_not_held,
};

/// However the lease before ended, the next token is larger.
pub async fn tokens_grow_over_every_change_of_owner(fixture: &dyn AnyFixture) {
    let (store, other) = (fixture.store().await, fixture.store().await);
    let mut last = 0;
    let mut grown = |token: i64| {
        assert!(token > last, "token {token} after {last}");
        last = token;
    };
    for _ in 0..2 {
        let released = Asker::new("token");
        grown(granted(&*store, released.acquire(LONG)).await.fence_token);
        one(&*store, released.release()).await;

        let forced = Asker::new("token");
        grown(granted(&*other, forced.acquire(LONG)).await.fence_token);
        assert!(force_release(&*store, &forced.key).await);

        let mut expired = Asker::new("token");
        grown(granted_briefly(&*store, &mut expired, SHORT, 0).await.fence_token);
        until_not_held(&*store, &expired.key).await;
    }
}

/// Grants faster than the clock ticks: the ceiling runs ahead of the clock, and each token is larger all the
/// same. A longer hold does not change the token.
pub async fn quick_grants_have_different_tokens(fixture: &dyn AnyFixture) {
    let store = fixture.store().await;
    let mut last = 0;
    for _ in 0..100 {
        let asker = Asker::new("quick");
        let token = granted(&*store, asker.acquire(LONG)).await.fence_token;
        assert!(token > last, "token {token} after {last}");
        last = token;
        one(&*store, asker.extend(2, LONG)).await;
        let row = existing(&*store, &asker.key).await;
        assert_eq!((row.fence_token, row.fence_ceiling), (token, token));
        one(&*store, asker.release()).await;
    }
}
