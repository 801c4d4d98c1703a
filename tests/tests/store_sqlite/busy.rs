//! Asking again and again for a busy key.

use std::time::Duration;

use dblock::store::{Outcome, Request, StoreErrorKind};
use sqlx::ConnectOptions;
use sqlx::sqlite::SqliteJournalMode;
use tokio::time::sleep;

use crate::{File, TTL, acquire, ask, asking, assert_error, execute, granted, one, row};

fn wanting(key: &str, length: Duration) -> Request {
    let mut ask = ask(TTL);
    ask.wanted_for = Some(length);
    asking(key, ask)
}

#[tokio::test]
async fn a_busy_poll_only_reads() {
    let file = File::migrated().await;
    let (store, other, mut user) = (file.store(), file.store(), file.user().await);
    let wanted_for = Duration::from_mins(1);
    let held = ["a", "b"].map(|key| acquire(key, TTL));
    for lease in &held {
        granted(&*store, lease).await;
    }
    let ask = || ["a", "b"].map(|key| wanting(key, wanted_for));
    for answer in other.apply(&ask()).await {
        assert!(matches!(answer, Ok(Outcome::Busy(_))), "{answer:?}");
    }
    let wanted_until = row(&*store, "a").await.unwrap().wanted_until;

    // Nobody can write.
    execute(&mut user, "BEGIN IMMEDIATE").await;
    let requests = ask();
    for batch in [&requests[..], &requests[..1]] {
        for answer in other.apply(batch).await {
            let Ok(Outcome::Busy(holder)) = answer else {
                panic!("{answer:?}")
            };
            assert!(holder.remaining.unwrap() > TTL / 2, "{holder:?}");
        }
    }
    assert_eq!(row(&*store, "a").await.unwrap().wanted_until, wanted_until);
    // Less than half of the time is left: now it would be written.
    let nearly =
        "UPDATE distributed_lock SET wanted_until = wanted_until - 31000000; COMMIT; BEGIN IMMEDIATE";
    execute(&mut user, nearly).await;
    assert_error(one(&*other, &ask()[0]).await, StoreErrorKind::Conflict, "");
    execute(&mut user, "COMMIT").await;
    assert!(matches!(one(&*other, &ask()[0]).await, Ok(Outcome::Busy(_))));
    let later = row(&*store, "a").await.unwrap();
    assert!(
        later.wanted_until.since(later.now) > Duration::from_secs(50),
        "{:?} at {:?}",
        later.wanted_until,
        later.now
    );
}

/// The change to WAL does not wait by itself.
#[tokio::test]
async fn a_writer_delays_the_first_use_of_a_file() {
    let file = File::new();
    let store = file.store();
    store.migrate().await.unwrap();
    store.close().await;
    let mut user = file
        .options()
        .journal_mode(SqliteJournalMode::Delete)
        .connect()
        .await
        .unwrap();
    execute(&mut user, "BEGIN IMMEDIATE").await;
    let (store, request) = (file.store(), acquire("k", TTL));
    let writer = async {
        sleep(Duration::from_millis(200)).await;
        execute(&mut user, "COMMIT").await;
    };
    let (answer, ()) = tokio::join!(one(&*store, &request), writer);
    assert!(matches!(answer, Ok(Outcome::Granted { .. })), "{answer:?}");
}
