//! Servers and users that are refused, with what to do about it.

use dblock::store::{Store as _, StoreError, StoreErrorKind};
use dblock::{LockError, LockManager};
use dblock_redis::RedisStore;
use dblock_servers::{Purpose, Server};

use super::{acquire, command, fresh, one, options, store};

async fn refused(server: &Server) -> StoreError {
    let built = LockManager::builder(store(server)).build().await;
    let Err(LockError::Store { source, .. }) = built else {
        panic!("{built:?}");
    };
    let asked = one(&store(server), acquire("k")).await.unwrap_err();
    assert_eq!(asked.to_string(), source.to_string(), "a lock is refused as well");
    source
}

/// One that is gone, and one that accepts a connection and says nothing.
#[tokio::test]
async fn an_error_names_the_server_that_cannot_be_used() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().to_string();
    for (protocol, address, says) in [
        ("redis", "127.0.0.1:1", "cannot be reached (Connection refused"),
        (
            "redis+cluster",
            "127.0.0.1:1",
            "cannot be reached (Connection refused",
        ),
        (
            "redis",
            &silent,
            "did not accept a connection within 2s; is it running",
        ),
        (
            "redis+cluster",
            &silent,
            "did not answer within 500ms; is it running",
        ),
    ] {
        let store = RedisStore::new(&format!("{protocol}://:hush@{address}")).unwrap();
        let error = store.check_schema().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        let said = error.to_string();
        assert!(
            said.starts_with(&format!("{address}: the Redis server {says}")) && said.lines().count() == 1,
            "{said}"
        );
    }
}

#[tokio::test]
async fn an_evicting_server_is_refused() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    command(&server, &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"]).await;
    let error = refused(&server).await;
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    assert!(error.to_string().contains("set it to noeviction"), "{error}");
    command(&server, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
    one(&store(&server), acquire("k")).await.unwrap();
}

#[tokio::test]
async fn a_replica_is_refused_and_used_once_it_is_the_primary() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = store(&server);
    one(&store, acquire("before")).await.unwrap();
    command(&server, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let demoted = one(&store, acquire("k")).await.unwrap_err();
    for error in [demoted, refused(&server).await] {
        assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("the server is a replica"), "{error}");
    }
    command(&server, &["REPLICAOF", "NO", "ONE"]).await;
    one(&store, acquire("k")).await.unwrap();
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_not_repeated() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = RedisStore::new(&server.url_of("default", "hush")).unwrap();
    let error = store.check_schema().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    let shown = format!("{error} {error:?} {store:?}");
    assert!(!shown.contains("hush"), "{shown}");
}

/// Each error is told at once, although the caller would wait.
#[tokio::test]
async fn a_url_that_does_not_fit_the_server_is_refused_at_once() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let (_, place) = server.url().split_once("://").unwrap();
    for (url, says) in [
        (format!("redis+cluster://{place}"), "not one of a Redis Cluster"),
        (format!("redis://{place}/99"), "no database of the number"),
        (
            format!(
                "redis+sentinel://{place}/main?sentinel_password={}",
                password(&server)
            ),
            "lacks a command",
        ),
    ] {
        let locks = LockManager::builder(RedisStore::new(&url).unwrap())
            .build_lazy()
            .unwrap();
        let refused = locks.lock("k").options(&options()).acquire().await;
        let Err(LockError::Store { source, .. }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(source.kind(), StoreErrorKind::Unsupported, "{source}");
        assert!(source.to_string().contains(says), "{source}");
    }
}

fn password(server: &Server) -> &str {
    let (user, _) = server.url().rsplit_once('@').unwrap();
    user.rsplit_once(':').unwrap().1
}

/// The words of the README that make the user.
fn rights() -> Vec<String> {
    let readme = include_str!("../../README.md");
    let line = readme
        .lines()
        .find(|line| line.starts_with("ACL SETUSER"))
        .unwrap();
    line.split(' ').map(|word| word.replace("…", "hush")).collect()
}

/// Such a user, by a URL of a database that is not the first.
async fn user(server: &Server, rights: &[String]) -> String {
    let mut words = vec!["ACL", "SETUSER", "locks", "reset"];
    words.extend(rights[3..].iter().map(String::as_str));
    command(server, &words).await;
    format!("{}/1", server.url_of("locks", "hush"))
}

#[tokio::test]
async fn a_user_needs_what_the_readme_lists() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let url = user(&server, &rights()).await;
    let open = || RedisStore::new(&url).unwrap();
    let (one, other) = (
        LockManager::builder(open()).build().await.unwrap(),
        LockManager::builder(open()).build().await.unwrap(),
    );
    let guard = one.lock("k").options(&options()).acquire().await.unwrap();
    let next = tokio::spawn(async move { other.lock("k").options(&options()).acquire().await.unwrap() });
    assert!(
        one.admin()
            .list(dblock::InspectFilter::new())
            .await
            .unwrap()
            .len()
            == 1
    );
    assert!(one.admin().revoke("k").await.unwrap());
    guard.release().await.unwrap();
    next.await.unwrap().release().await.unwrap();
    one.admin().diagnose().await.unwrap();

    let elsewhere = RedisStore::new(&url).unwrap().prefix("other");
    let error = super::one(&elsewhere, acquire("k")).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
}

/// The error comes at once, although the caller would wait.
#[tokio::test]
async fn a_right_that_is_missing_is_told_and_not_waited_for() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    // Without these locks work: waiters poll, and an idle connection is opened again. Others are for operators.
    let spared = ["+publish", "+subscribe", "+ping", "+scan", "+get"];
    for missing in rights().iter().filter(|word| word.starts_with('+')) {
        let rights: Vec<_> = rights().into_iter().filter(|word| word != missing).collect();
        let url = user(&server, &rights).await;
        command(&server, &["SCRIPT", "FLUSH"]).await;
        let locks = LockManager::builder(RedisStore::new(&url).unwrap())
            .build_lazy()
            .unwrap();
        let worked = async {
            let guard = locks.lock("k").options(&options()).acquire().await?;
            guard.release().await
        };
        let worked = worked.await;
        let Err(error) = worked else {
            assert!(spared.contains(&missing.as_str()), "locks work without {missing}");
            continue;
        };
        // Only a release needs `+setrange`.
        let (LockError::Store { source, .. } | LockError::Unconfirmed { source, .. }) = error else {
            panic!("{missing}: {error:?}");
        };
        assert_eq!(source.kind(), StoreErrorKind::Refused, "{missing}: {source}");
    }
}
