//! Fence tokens only grow, and a guard reports its own.

use dblock_conformance::context::ROUNDS;

use super::AnyFixture;
use super::setup::{LONG, SHORT, Setup};

/// Two managers in turn, with releases and force-releases: each token is larger, and the row has it.
pub async fn tokens_grow_over_managers_and_force(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let managers = [setup.manager().await, setup.manager().await];
    let mut last = 0;
    for turn in 0..12 {
        let locks = &managers[turn % 2];
        // Waits, because the release of a dropped guard may still be on its way.
        let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
        let token = guard.fence_token();
        assert!(token > last, "{token} after {last}");
        assert_eq!(setup.the_row("key").await.fence_token, token);
        last = token;
        if turn % 3 == 0 {
            assert!(managers[1].admin().force_release("key").await.unwrap());
        } else {
            guard.release().await.unwrap();
        }
    }
}

/// A guard that was freed by force reports its own token, not the next owner's.
pub async fn a_guard_reports_its_own_token_while_another_has_a_newer(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let (locks, other) = (setup.manager().await, setup.manager().await);
    let former = locks.lock("key").acquire().await.unwrap();
    let token = setup.the_row("key").await.fence_token;
    other.admin().force_release("key").await.unwrap();
    let successor = other.lock("key").acquire().await.unwrap();
    assert_eq!(former.fence_token(), token);
    assert!(successor.fence_token() > token);
    assert_eq!(setup.the_row("key").await.fence_token, successor.fence_token());
}

/// The token after a takeover is larger than the dead holder's.
pub async fn tokens_grow_over_a_takeover(fixture: &dyn AnyFixture) {
    let setup = Setup::new(fixture).await;
    let locks = setup.manager().await;
    for _ in 0..ROUNDS {
        let dead = setup.die_inside("key", SHORT).await;
        let guard = locks.lock("key").wait(LONG).acquire().await.unwrap();
        assert!(guard.fence_token() > dead.fence_token);
        // A lease that was passed on is short at first, and may be over when the machine stalls.
        if guard.pin().await.is_ok() {
            assert_eq!(setup.the_row("key").await.fence_token, guard.fence_token());
            return;
        }
    }
    panic!("each lease was lost at once");
}
