//! The store's own connections: how many there are, and who waits for one.

use dblock::store::{Outcome, Store, WakeUp};
use dblock_tests::proxy::Proxy;
use sqlx::{AssertSqlSafe, Connection};
use tokio::sync::mpsc;

use crate::bench::{Bench, acquire, ask, extend, one};

/// The listener and a migration are among the store's four connections, and leave room for the lanes.
#[tokio::test]
async fn there_are_never_more_than_four() {
    let Some(bench) = Bench::new("connections").await else {
        return;
    };
    let proxy = Proxy::start(bench.address());
    let store = bench.store_at(proxy.address());
    let work = async |name: &str| {
        let batch: Vec<_> = (0..200).map(|i| acquire(format!("{name} {i}"))).collect();
        for answer in store.apply(&batch).await {
            answer.unwrap();
        }
    };
    let renewal = extend(&acquire("d"), 1);
    let ((), (), (), renewed) = tokio::join!(work("a"), work("b"), work("c"), one(&store, &renewal));
    renewed.unwrap();
    let (told, mut heard) = mpsc::unbounded_channel();
    let tell = |wake_up| told.send(wake_up).unwrap();
    let all = async {
        assert_eq!(heard.recv().await, Some(WakeUp::Listening));
        let renewal = one(&store, &renewal);
        let ((), (), (), renewed, migrated) =
            tokio::join!(work("e"), work("f"), work("g"), renewal, store.migrate());
        renewed.unwrap();
        migrated.unwrap();
    };
    tokio::select! {
        error = store.listen(&tell) => panic!("{error}"),
        () = all => {}
    }
    assert_eq!(proxy.most_open(), 4);
}

/// All other work is slow: a renewal has a connection all the same.
#[tokio::test]
async fn a_renewal_does_not_wait_for_a_connection() {
    let Some(bench) = Bench::new("connections_renewal").await else {
        return;
    };
    let store = bench.store();
    let [held, stuck] = ["held", "stuck"].map(acquire);
    ask(&store, &held).await;
    ask(&store, &stuck).await;
    // An insert of these rows or a release of that one waits for this transaction, for a second at most.
    let mut user = bench.user().await;
    let mut transaction = user.begin().await.unwrap();
    let locks = format!(
        "INSERT INTO {0} SELECT key, gen_random_uuid(), 0, 0, gen_random_uuid(), 0, 0, 0, 0, '', false
             FROM unnest(ARRAY['a', 'b']) key;
         SELECT FROM {0} WHERE lock_key = 'stuck' FOR UPDATE",
        bench.table
    );
    sqlx::raw_sql(AssertSqlSafe(locks))
        .execute(&mut *transaction)
        .await
        .unwrap();

    let (told, mut heard) = mpsc::unbounded_channel();
    let tell = |wake_up| told.send(wake_up).unwrap();
    let renewed = async {
        assert_eq!(heard.recv().await, Some(WakeUp::Listening));
        tokio::select! {
            biased;
            answer = async { one(&store, &acquire("a")).await } => panic!("it ended first: {answer:?}"),
            answer = async { one(&store, &acquire("b")).await } => panic!("it ended first: {answer:?}"),
            answer = store.force_release(&stuck.key) => panic!("it ended first: {answer:?}"),
            answer = async { one(&store, &extend(&held, 1)).await } => answer.unwrap(),
        }
    };
    let renewed = tokio::select! {
        error = store.listen(&tell) => panic!("{error}"),
        outcome = renewed => outcome,
    };
    assert!(matches!(renewed, Outcome::Extended { .. }), "{renewed:?}");
}
