//! A crash of the server: what it may forget, and what it keeps.

use std::time::Duration;

use dblock::store::{Outcome, Store as _, StoreErrorKind};
use dblock::{LockManager, Severity};
use dblock_servers::Purpose;

use super::{acquire, fresh, one, options, store};

#[tokio::test]
async fn a_restart_keeps_the_locks_of_a_durable_server() {
    let Some(mut server) = fresh(Purpose::Torture).await else {
        return;
    };
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let token = guard.fence_token();
    server.kill();
    server.restart().await.unwrap();
    let other = LockManager::builder(store(&server)).build().await.unwrap();
    assert!(other.lock("k").try_acquire().await.unwrap().is_none());
    assert_eq!(other.admin().get("k").await.unwrap().unwrap().fence_token, token);
    // The first manager finds the server again by itself.
    guard.release().await.unwrap();
    let next = other.lock("k").options(&options()).acquire().await.unwrap();
    assert!(next.fence_token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_waits_for_the_disk_where_the_server_can_tell() {
    let Some(server) = fresh(Purpose::Torture).await else {
        return;
    };
    let synced = store(&server).synced_by(0, Duration::from_secs(1)).unwrap();
    match one(&synced, acquire("k")).await {
        Ok(granted) => assert!(matches!(granted, Outcome::Granted { .. }), "{granted:?}"),
        // Redis before 7.2 cannot.
        Err(refused) => {
            assert_eq!(refused.kind(), StoreErrorKind::Unsupported, "{refused}");
            assert!(refused.to_string().contains("7.2 or later"), "{refused}");
        }
    }
}

#[tokio::test]
async fn a_diagnosis_says_what_a_crash_may_forget() {
    for (purpose, severity) in [
        (Purpose::Tests, Severity::Note),
        (Purpose::Torture, Severity::Fine),
    ] {
        let Some(server) = fresh(purpose).await else {
            return;
        };
        let findings = store(&server).diagnose().await.unwrap();
        let durability = findings
            .iter()
            .find(|finding| finding.check == "durability")
            .unwrap();
        assert_eq!(durability.severity, severity, "{durability:?}");
    }
}
