//! Migrations, and tables of other versions.

use dblock::store::{Outcome, PostgresStore, Released, Store, StoreErrorKind};
use dblock_tests::postgres_url;
use futures_util::future::join_all;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _};

use crate::bench::{Bench, TTL, acquire, ask, extend, one, queueing, release, token};

/// Version 1 of the tables, with rows: many nodes upgrade it at once, and its clients are shut out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_version_1_is_upgraded() {
    let Some(bench) = Bench::new("upgrade").await else {
        return;
    };
    let held = acquire("held");
    token(&ask(&bench.store(), &held).await);
    bench
        .run(
            "ALTER TABLE {t} DROP COLUMN next_lease, DROP COLUMN next_owner, DROP COLUMN next_holder,
                DROP COLUMN next_ttl, DROP COLUMN next_spare, DROP COLUMN next_since, DROP COLUMN next_until,
                ADD COLUMN reserved_for UUID, ADD COLUMN reserved_until BIGINT NOT NULL DEFAULT 0,
                ADD COLUMN reserved_token BIGINT NOT NULL DEFAULT 0;
             UPDATE {t}_version SET version = 1, min_client = 1",
        )
        .await;
    let older = bench.store().check_schema().await.unwrap_err();
    assert!(
        older.to_string().contains("call `locks.admin().migrate()`"),
        "{older}"
    );
    let error = one(&bench.store(), &extend(&held, 1)).await;
    assert!(matches!(error, Ok(Outcome::Extended { .. })), "{error:?}");
    let error = one(&bench.store(), &release(&held)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert!(
        error.to_string().contains("call `locks.admin().migrate()`"),
        "{error}"
    );

    let stores: Vec<_> = (0..10).map(|_| bench.store()).collect();
    for answer in join_all(stores.iter().map(PostgresStore::migrate)).await {
        answer.unwrap();
    }
    bench.store().check_schema().await.unwrap();
    let mut user = bench.user().await;
    let columns = "SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_attribute
        WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped";
    let mut of = async |table: &str| -> String {
        let query = sqlx::query_scalar(columns).bind(table.to_owned());
        query.fetch_one(&mut user).await.unwrap()
    };
    let upgraded = of(&bench.table).await;
    let fresh = Bench::new("upgrade_fresh").await.unwrap();
    assert_eq!(upgraded, of(&fresh.table).await);
    assert!(!upgraded.contains("reserved"), "{upgraded}");
    let version = AssertSqlSafe(format!("SELECT version, min_client FROM {}_version", bench.table));
    let version: (i32, i32) = sqlx::query_as(version).fetch_one(&mut user).await.unwrap();
    assert_eq!(version, (4, 2));
    // The row is as it was.
    let next = queueing("held", TTL);
    assert!(matches!(ask(&bench.store(), &next).await, Outcome::Queued { .. }));
    let passed_on = ask(&bench.store(), &release(&held)).await;
    assert!(
        matches!(passed_on, Outcome::Released(Released::PassedOn)),
        "{passed_on:?}"
    );
}

/// Renewals queue behind an ALTER, which queues behind a transaction that has taken a key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_beside_an_open_transaction_keeps_no_renewal_waiting() {
    let Some(bench) = Bench::new("upgrade_beside").await else {
        return;
    };
    let (store, held) = (bench.store(), acquire("held"));
    token(&ask(&store, &held).await);
    bench.run("UPDATE {t}_version SET version = 2").await;
    let mut user = bench.user().await;
    let mut open = user.begin().await.unwrap();
    let writes = format!("LOCK TABLE {} IN ROW EXCLUSIVE MODE", bench.table);
    sqlx::query(AssertSqlSafe(writes))
        .execute(&mut *open)
        .await
        .unwrap();

    let migrating = bench.store();
    let migrates = tokio::spawn(async move { migrating.migrate().await });
    let mut observer = bench.user().await;
    let queues = "SELECT EXISTS (SELECT FROM pg_locks
        WHERE relation = $1::regclass AND mode = 'AccessExclusiveLock' AND NOT granted)";
    for count in 1..=3 {
        while !sqlx::query_scalar::<_, bool>(queues)
            .bind(&bench.table)
            .fetch_one(&mut observer)
            .await
            .unwrap()
        {
            assert!(!migrates.is_finished(), "it needs the table for itself");
        }
        let renewed = one(&store, &extend(&held, count)).await;
        assert!(matches!(renewed, Ok(Outcome::Extended { .. })), "{renewed:?}");
    }
    open.commit().await.unwrap();
    migrates.await.unwrap().unwrap();
    store.check_schema().await.unwrap();
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

/// The scripts by hand, with their own names, twice.
#[tokio::test]
async fn the_scripts_run_by_hand() {
    let Some(url) = postgres_url() else { return };
    let scripts = [
        include_str!("../../../migrations/postgres/0001_distributed_lock.sql"),
        include_str!("../../../migrations/postgres/0002_record.sql"),
        include_str!("../../../migrations/postgres/0003_shared.sql"),
    ];
    let mut user = url.parse::<PgConnectOptions>().unwrap().connect().await.unwrap();
    let set =
        "DROP SCHEMA IF EXISTS test_hand CASCADE; CREATE SCHEMA test_hand; SET search_path TO test_hand";
    sqlx::raw_sql(set).execute(&mut user).await.unwrap();
    for script in scripts.iter().chain(&scripts) {
        sqlx::raw_sql(*script).execute(&mut user).await.unwrap();
    }
    PostgresStore::open(&url, "test_hand.distributed_lock")
        .unwrap()
        .check_schema()
        .await
        .unwrap();
}
