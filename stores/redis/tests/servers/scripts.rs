//! Scripts of the user's that check the fence token.

use std::time::Duration;

use dblock::LockManager;
use dblock_servers::Purpose;
use redis::aio::MultiplexedConnection;

use super::{connect, fresh, options, store};

/// Writes under a lock by a script of the user's. Whether it was let do so.
async fn write(redis: &mut MultiplexedConnection, key: &str, token: i64) -> bool {
    let script = redis::Script::new(&format!(
        "{}
         if not dblock_holds(KEYS[1], ARGV[1]) then return 0 end
         redis.call('INCR', KEYS[2])
         return 1",
        dblock_redis::VERIFY
    ));
    let mut write = script.key(format!("dblock:lock:{key}"));
    let written = write.key("written").arg(token).invoke_async(redis);
    written.await.unwrap()
}

#[tokio::test]
async fn a_script_of_the_users_can_check_the_token() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let mut redis = connect(&server).await;
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    assert!(!write(&mut redis, "k", 1).await, "nobody has ever held it");
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let token = guard.fence_token();
    assert!(write(&mut redis, "k", token).await);
    assert!(!write(&mut redis, "k", token - 1).await);
    assert!(locks.admin().force_release("k").await.unwrap());
    assert!(!write(&mut redis, "k", token).await, "it is free");
    let other = LockManager::builder(store(&server)).build().await.unwrap();
    let next = other.lock("k").options(&options()).acquire().await.unwrap();
    assert!(!write(&mut redis, "k", token).await, "another one holds it");
    next.release().await.unwrap();
    drop(guard);
}

/// The row has another layout then.
#[tokio::test]
async fn a_script_knows_the_owner_while_another_waits_to_share_and_none_of_those_who_share() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let mut redis = connect(&server).await;
    let (locks, other) = (store(&server), store(&server));
    let locks = LockManager::builder(locks).build().await.unwrap();
    let other = LockManager::builder(other).build().await.unwrap();
    let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
    let waits = tokio::spawn(async move { other.lock("k").options(&options()).shared().acquire().await });
    let row = async || locks.admin().get("k").await.unwrap().unwrap();
    while row().await.next.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(write(&mut redis, "k", guard.fence_token()).await);
    assert!(!write(&mut redis, "k", guard.fence_token() - 1).await);
    guard.release().await.unwrap();
    let shared = waits.await.unwrap().unwrap();
    // The first request of a lease that was passed on makes it a shared one.
    let beside = locks
        .lock("k")
        .options(&options())
        .shared()
        .acquire()
        .await
        .unwrap();
    assert_eq!(row().await.shared.len(), 2);
    assert!(!write(&mut redis, "k", shared.fence_token()).await);
    shared.release().await.unwrap();
    beside.release().await.unwrap();
}

#[tokio::test]
async fn a_script_knows_each_owner_after_a_local_hand_over() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let redis = connect(&server).await;
    let locks = LockManager::builder(store(&server)).build().await.unwrap();
    let mut owners = tokio::task::JoinSet::new();
    for number in 0..20 {
        let (locks, mut redis) = (locks.clone(), redis.clone());
        owners.spawn(async move {
            let guard = locks.lock("k").options(&options()).acquire().await.unwrap();
            // Only some ask, so that the others hand the lock over.
            if number % 4 == 3 {
                guard.pin().await.unwrap();
                assert!(write(&mut redis, "k", guard.fence_token()).await);
            }
            guard.release().await.unwrap();
        });
    }
    owners.join_all().await;
}
