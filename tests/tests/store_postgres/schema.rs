//! Migrations, and tables of other versions.

use dblock::store::postgres::PostgresStore;
use dblock::store::{InspectFilter, Store, StoreErrorKind};
use dblock_tests::postgres_url;
use futures_util::future::join_all;
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::bench::{Bench, acquire, ask, one, token};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_migrations_at_once() {
    let Some(bench) = Bench::empty("migrations").await else {
        return;
    };
    let missing = bench.store().check_schema().await.unwrap_err();
    assert_eq!(missing.kind(), StoreErrorKind::Schema);
    assert!(missing.to_string().contains("migrate"), "{missing}");
    let unasked = one(&bench.store(), &acquire("a")).await.unwrap_err();
    assert_eq!(unasked.kind(), StoreErrorKind::Schema, "{unasked}");

    let stores: Vec<_> = (0..10).map(|_| bench.store()).collect();
    for answer in join_all(stores.iter().map(PostgresStore::migrate)).await {
        answer.unwrap();
    }
    bench.store().check_schema().await.unwrap();
    // By hand, with rows in it.
    token(&ask(&bench.store(), &acquire("a")).await);
    bench.store().migrate().await.unwrap();
    assert_eq!(
        bench.store().inspect(&InspectFilter::new()).await.unwrap().len(),
        1
    );
}

#[tokio::test]
async fn a_schema_of_another_version() {
    let Some(bench) = Bench::new("versions").await else {
        return;
    };
    let store = bench.store();
    bench
        .run("UPDATE {t}_version SET version = 0, min_client = 0")
        .await;
    assert!(
        store
            .check_schema()
            .await
            .unwrap_err()
            .to_string()
            .contains("older")
    );
    bench.store().migrate().await.unwrap();
    store.check_schema().await.unwrap();
    bench.run("UPDATE {t}_version SET version = 9").await;
    store.check_schema().await.unwrap();
    store.migrate().await.unwrap();
    bench.run("UPDATE {t}_version SET min_client = 9").await;
    for error in [
        store.check_schema().await.unwrap_err(),
        store.migrate().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains("upgrade the dblock crate"), "{error}");
    }
    bench.run("DROP TABLE {t}").await;
    assert!(
        store
            .check_schema()
            .await
            .unwrap_err()
            .to_string()
            .contains("not there")
    );
}

/// A table in a schema that is not there yet.
#[tokio::test]
async fn a_migration_makes_the_schema() {
    let Some(url) = postgres_url() else { return };
    let bench = Bench {
        url,
        table: "test_ops.locks".into(),
    };
    bench.run("DROP SCHEMA IF EXISTS test_ops CASCADE").await;
    let store = bench.store();
    assert_eq!(
        store.check_schema().await.unwrap_err().kind(),
        StoreErrorKind::Schema
    );
    store.migrate().await.unwrap();
    token(&ask(&store, &acquire("a")).await);
}

/// The script by hand, with its own names, twice.
#[tokio::test]
async fn the_script_runs_by_hand() {
    let Some(url) = postgres_url() else { return };
    let script = include_str!("../../../migrations/postgres/0001_distributed_lock.sql");
    let mut user = url.parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let set =
        "DROP SCHEMA IF EXISTS test_hand CASCADE; CREATE SCHEMA test_hand; SET search_path TO test_hand";
    sqlx::raw_sql(set).execute(&mut user).await.unwrap();
    for _ in 0..2 {
        sqlx::raw_sql(script).execute(&mut user).await.unwrap();
    }
    PostgresStore::open(&url, "test_hand.distributed_lock")
        .unwrap()
        .check_schema()
        .await
        .unwrap();
}
