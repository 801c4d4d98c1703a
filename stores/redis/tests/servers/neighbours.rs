//! Other data on the server: other databases, and keys that are no rows.

use dblock::Key;
use dblock::store::{Outcome, Store as _, StoreErrorKind};
use dblock_redis::RedisStore;
use dblock_servers::Purpose;

use super::{acquire, command, connect, fresh, one, store};

#[tokio::test]
async fn the_databases_of_a_server_are_apart() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    let other = RedisStore::new(&format!("{}/1", server.url())).unwrap();
    for store in [store(&server), other] {
        let outcome = one(&store, acquire("k")).await.unwrap();
        assert!(matches!(outcome, Outcome::Granted { .. }), "{outcome:?}");
    }
}

#[tokio::test]
async fn what_is_no_row_is_left_alone_and_fails_its_own_key_only() {
    let Some(server) = fresh(Purpose::Tests).await else {
        return;
    };
    command(&server, &["SET", "dblock:lock:text", "not ours"]).await;
    command(&server, &["LPUSH", "dblock:lock:list", "not ours"]).await;
    let store = store(&server);
    let answers = store.apply(&["text", "good", "list"].map(acquire)).await;
    for place in [0, 2] {
        let error = answers[place].as_ref().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    }
    assert!(matches!(answers[1], Ok(Outcome::Granted { .. })), "{answers:?}");
    let key = Key::new(None, "text").unwrap();
    let error = store.force_release(&key).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    let mut connection = connect(&server).await;
    let mut get = redis::cmd("GET");
    let kept: String = get
        .arg("dblock:lock:text")
        .query_async(&mut connection)
        .await
        .unwrap();
    assert_eq!(kept, "not ours");
}
