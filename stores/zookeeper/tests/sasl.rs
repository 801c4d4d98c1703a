//! A user of SASL, on a server that takes nobody else.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::store::{Store as _, StoreErrorKind};
use dblock::{LockManager, LockOptions};
use dblock_servers::zookeeper::start_with_sasl;
use dblock_servers::{Kind, is_installed};
use dblock_zookeeper::ZookeeperStore;
use dblock_zookeeper::zookeeper_client::SaslOptions;

#[tokio::test(flavor = "multi_thread")]
async fn a_user_by_a_digest_has_the_locks_alone() {
    if !is_installed(Kind::ZooKeeper) {
        dblock_tests::left_out("a ZooKeeper server of its own", "install zookeeper");
        return;
    }
    let server = start_with_sasl(&[("us", "hush"), ("them", "other")])
        .await
        .unwrap();
    let anonymous = ZookeeperStore::new(server.url()).unwrap();
    let user = |name: &'static str, password: &'static str| {
        let options = SaslOptions::digest_md5(name, password);
        anonymous.clone().sasl(options)
    };
    // Its first session takes long while many servers start side by side.
    while let Err(error) = user("us", "hush").check_schema().await {
        assert!(error.is_retryable(), "{error}");
    }
    let locks = LockManager::builder(user("us", "hush")).build().await.unwrap();
    let options = LockOptions::new().wait(Duration::from_secs(20));
    let guard = locks.lock("k").options(&options).acquire().await.unwrap();
    guard.release().await.unwrap();

    for stranger in [user("us", "wrong"), user("them", "other"), anonymous.clone()] {
        let refused = stranger.check_schema().await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
        let shown = format!("{refused} {refused:?} {stranger:?}");
        assert!(!shown.contains("hush") && !shown.contains("wrong"), "{shown}");
    }
}
