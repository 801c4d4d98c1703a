//! Clients of the user's, and passwords that change.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::{Outcome, Store as _, StoreErrorKind, WakeUp};
use dblock_redis::RedisStore;
use dblock_servers::Purpose;

use super::{acquire, command, fresh, one, store};

#[tokio::test]
async fn a_client_of_the_users_is_used_with_its_database() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let client = redis::Client::open(format!("{}/1", server.url())).unwrap();
    let by_client = RedisStore::from(client);
    one(&by_client, acquire("k")).await.unwrap();
    let first = one(&store(&server), acquire("k")).await.unwrap();
    assert!(
        matches!(first, Outcome::Granted { .. }),
        "in another database: {first:?}"
    );
    let second = RedisStore::new(&format!("{}/1", server.url())).unwrap();
    let second = one(&second, acquire("k")).await.unwrap();
    assert!(matches!(second, Outcome::Busy(_)), "{second:?}");
}

#[tokio::test]
async fn a_password_may_change() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let address = server.address();
    let password = Arc::new(Mutex::new("old".to_owned()));
    let latest = Arc::clone(&password);
    let store = RedisStore::new(&format!("redis://locks@{address}")).unwrap();
    let store = store.connect_with(move |server| {
        let login = server
            .redis_settings()
            .clone()
            .set_password(&*latest.lock().unwrap());
        std::future::ready(redis::Client::open(server.set_redis_settings(login)))
    });
    let user = |word: &'static str| {
        [
            "ACL",
            "SETUSER",
            "locks",
            "on",
            "resetpass",
            word,
            "~*",
            "&*",
            "+@all",
        ]
    };
    command(&server, &user(">old")).await;
    one(&store, acquire("a")).await.unwrap();

    command(&server, &user(">new")).await;
    command(&server, &["CLIENT", "KILL", "USER", "locks"]).await;
    // The connection is found broken, and then the password wrong.
    let refused = loop {
        let failed = one(&store, acquire("b")).await.unwrap_err();
        if failed.kind() != StoreErrorKind::Interrupted {
            break failed;
        }
    };
    assert_eq!(refused.kind(), StoreErrorKind::Refused, "{refused}");
    *password.lock().unwrap() = "new".to_owned();
    one(&store, acquire("b")).await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = async { store.listen(&move |wake_up| drop(tell.send(wake_up))).await };
    tokio::select! {
        error = listening => panic!("{error}"),
        heard = told.recv() => assert_eq!(heard, Some(WakeUp::Listening)),
    }
}

#[tokio::test]
async fn a_client_that_cannot_be_made_is_no_server_that_refuses() {
    let store = RedisStore::new("redis://localhost").unwrap();
    let store = store.connect_with(|_| async { Err(std::io::Error::other("no token")) });
    let failed = one(&store, acquire("k")).await.unwrap_err();
    assert_eq!(failed.kind(), StoreErrorKind::Unreachable, "{failed}");
    assert!(failed.to_string().contains("no token"), "{failed}");
}

#[tokio::test]
async fn a_server_is_not_taken_for_gone_because_its_client_is_made_slowly() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let store = RedisStore::new(server.url()).unwrap();
    let store = store.connect_with(|server| async {
        tokio::time::sleep(Duration::from_millis(2_200)).await;
        redis::Client::open(server)
    });
    store.check_schema().await.unwrap();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let listening = async { store.listen(&move |wake_up| drop(tell.send(wake_up))).await };
    tokio::select! {
        error = listening => panic!("{error}"),
        heard = told.recv() => assert_eq!(heard, Some(WakeUp::Listening)),
    }
}
