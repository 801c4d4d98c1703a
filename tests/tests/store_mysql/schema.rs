//! Creating the tables, and their version.

use dblock::store::mysql::MySqlStore;
use dblock::store::{InspectFilter, Store, StoreErrorKind};
use uuid::Uuid;

use crate::place::Place;
use crate::{acquire, kind, one, run, token};

#[tokio::test]
async fn ten_migrations_at_once_all_succeed() {
    let Some(place) = Place::bare().await else { return };
    let stores: Vec<_> = (0..10).map(|_| place.store()).collect();
    for done in futures_util::future::join_all(stores.iter().map(Store::migrate)).await {
        done.unwrap();
    }
    stores[0].check_schema().await.unwrap();
    token(&one(&stores[1], acquire("k")).await);
    stores[2].migrate().await.unwrap();
    assert_eq!(
        stores[3].inspect(&InspectFilter::new()).await.unwrap().len(),
        1,
        "migrating again keeps the rows"
    );
}

#[tokio::test]
async fn the_script_runs_by_hand_and_twice() {
    let Some(place) = Place::bare().await else { return };
    let database = format!("dblock_hand_{}", Uuid::now_v7().simple());
    let script = include_str!("../../../dblock/migrations/mysql/0001_distributed_lock.sql");
    let mut admin = place.connection().await;
    run(&mut admin, &format!("CREATE DATABASE {database}; USE {database}")).await;
    run(&mut admin, script).await;
    run(&mut admin, script).await;
    let store = MySqlStore::open(&place.url, &format!("{database}.distributed_lock")).unwrap();
    store.check_schema().await.unwrap();
    token(&one(&store, acquire("k")).await);
    run(&mut admin, &format!("DROP DATABASE {database}")).await;
}

#[tokio::test]
async fn a_missing_older_or_newer_table_names_its_remedy() {
    let Some(place) = Place::bare().await else { return };
    let store = place.store();
    for answer in [
        store.check_schema().await,
        store.apply(&[acquire("k")]).await.pop().unwrap().map(drop),
    ] {
        let (kind, text) = kind(answer);
        assert_eq!(kind, StoreErrorKind::Schema);
        assert!(text.contains("LockManager::migrate"), "{text}");
    }
    store.migrate().await.unwrap();
    store.check_schema().await.unwrap();
    for (version, min_client, remedy) in [(9, 9, "upgrade the dblock crate"), (0, 0, "older")] {
        let table = &place.table;
        place
            .run(&format!(
                "UPDATE {table}_version SET version = {version}, min_client = {min_client}"
            ))
            .await;
        for answer in [store.check_schema().await, store.migrate().await] {
            let (kind, text) = kind(answer);
            assert_eq!(kind, StoreErrorKind::Schema);
            assert!(text.contains(remedy), "{text}");
        }
    }
    place
        .run(&format!(
            "UPDATE {}_version SET version = 9, min_client = 1",
            place.table
        ))
        .await;
    store.check_schema().await.unwrap();
}
