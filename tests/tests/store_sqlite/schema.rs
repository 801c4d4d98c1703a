//! Creating the tables, and their version.

use std::time::Duration;

use dblock::store::{Outcome, StoreErrorKind};

use crate::{File, TTL, acquire, assert_error, execute, granted, one, row};

#[tokio::test]
async fn a_migration_waits_for_a_write_transaction() {
    let file = File::new();
    let (store, mut user) = (file.store(), file.user().await);
    execute(&mut user, "CREATE TABLE theirs (id INTEGER); BEGIN IMMEDIATE").await;
    let migration = tokio::spawn(async move { store.migrate().await });
    // Longer than one statement of ours waits.
    assert!(
        tokio::time::timeout(Duration::from_millis(1500), async {
            while !migration.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .is_err(),
        "the migration did not wait"
    );
    execute(&mut user, "COMMIT").await;
    migration.await.unwrap().unwrap();
}

pub(crate) const SCRIPTS: [&str; 4] = [
    include_str!("../../../dblock/migrations/sqlite/0001_distributed_lock.sql"),
    include_str!("../../../dblock/migrations/sqlite/0002_successor.sql"),
    include_str!("../../../dblock/migrations/sqlite/0003_record.sql"),
    include_str!("../../../dblock/migrations/sqlite/0004_shared.sql"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_version_1_is_upgraded_by_many_at_once_and_keeps_its_rows() {
    let file = File::new();
    let mut user = file.user().await;
    let old = "INSERT INTO distributed_lock VALUES ('old', zeroblob(16), 1, 1, randomblob(16), 7, 8, 0, 0, 'me', 0)";
    execute(&mut user, &format!("{}; {old}", SCRIPTS[0])).await;
    let store = file.store();
    assert_error(store.check_schema().await, StoreErrorKind::Schema, "older");
    let mut migrations = tokio::task::JoinSet::new();
    for _ in 0..5 {
        let store = file.store();
        migrations.spawn(async move { store.migrate().await });
    }
    for answer in migrations.join_all().await {
        answer.unwrap();
    }
    store.check_schema().await.unwrap();
    let versions: Vec<(i32, i32)> =
        sqlx::query_as("SELECT version, min_client FROM distributed_lock_version")
            .fetch_all(&mut user)
            .await
            .unwrap();
    assert_eq!(versions, [(4, 2)]);
    let old = row(&*store, "old").await.unwrap();
    assert_eq!((old.fence_token, old.fence_ceiling, old.next), (7, 8, None));
    let taken = one(&*store, &acquire("old", TTL)).await.unwrap();
    assert!(
        matches!(&taken, Outcome::Granted { taken_over: Some(former), .. } if former.name == "me"),
        "{taken:?}"
    );
}

#[tokio::test]
async fn the_scripts_run_by_hand_and_a_second_time_in_vain() {
    let file = File::new();
    let mut user = file.user().await;
    let [first, second, third, fourth] = SCRIPTS;
    execute(&mut user, first).await;
    execute(&mut user, first).await;
    execute(&mut user, &format!("BEGIN IMMEDIATE; {second}; COMMIT")).await;
    for _ in 0..2 {
        execute(&mut user, &format!("BEGIN IMMEDIATE; {third}; COMMIT")).await;
    }
    execute(&mut user, &format!("BEGIN IMMEDIATE; {fourth}; COMMIT")).await;
    for script in [second, fourth] {
        let again = sqlx::raw_sql(script).execute(&mut user).await.unwrap_err();
        assert!(again.to_string().contains("duplicate column name"), "{again}");
    }
    let store = file.store();
    store.check_schema().await.unwrap();
    granted(&*store, &acquire("k", TTL)).await;
}
