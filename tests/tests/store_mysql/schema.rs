//! Creating the tables, and their version.

use dblock::store::{MySqlStore, Outcome, Store, StoreErrorKind};
use sqlx::mysql::MySqlConnection;
use uuid::Uuid;

use crate::place::Place;
use crate::{acquire, kind, one, release, row, run, token};

const SCRIPTS: [&str; 4] = [
    include_str!("../../../dblock/migrations/mysql/0001_distributed_lock.sql"),
    include_str!("../../../dblock/migrations/mysql/0002_successor.sql"),
    include_str!("../../../dblock/migrations/mysql/0003_record.sql"),
    include_str!("../../../dblock/migrations/mysql/0004_shared.sql"),
];

/// Runs scripts as `mysql --force` does, up to `limit` statements.
async fn by_hand(connection: &mut MySqlConnection, scripts: &[&'static str], limit: usize) {
    let statements = scripts.iter().flat_map(|script| script.split_inclusive(';'));
    let statements = statements.filter(|text| text.ends_with(';'));
    for statement in statements.take(limit) {
        if let Err(error) = sqlx::raw_sql(statement).execute(&mut *connection).await {
            assert!(error.to_string().contains("Duplicate column name"), "{error}");
        }
    }
}

/// A database of its own with a default lock table.
struct ByHand {
    place: Place,
    database: String,
    admin: MySqlConnection,
}

impl ByHand {
    async fn new() -> Option<Self> {
        let place = Place::bare().await?;
        let database = format!("dblock_hand_{}", Uuid::now_v7().simple());
        let mut admin = place.connection().await;
        run(&mut admin, &format!("CREATE DATABASE {database}; USE {database}")).await;
        Some(Self {
            place,
            database,
            admin,
        })
    }

    fn store(&self) -> MySqlStore {
        MySqlStore::open(&self.place.url, &format!("{}.distributed_lock", self.database)).unwrap()
    }

    async fn works(&mut self) {
        let store = self.store();
        store.check_schema().await.unwrap();
        let name = Uuid::now_v7().to_string();
        let request = acquire(&name);
        token(&one(&store, request.clone()).await);
        one(&store, release(&request)).await;
        assert_eq!(row(&store, &name).await.next, None);
        let versions: Vec<(i32, i32)> =
            sqlx::query_as("SELECT version, min_client FROM distributed_lock_version")
                .fetch_all(&mut self.admin)
                .await
                .unwrap();
        assert_eq!(versions, [(4, 2)]);
    }

    async fn end(mut self) {
        let drop = format!("DROP DATABASE {}", self.database);
        run(&mut self.admin, &drop).await;
    }
}

#[tokio::test]
async fn the_scripts_run_by_hand_and_twice() {
    let Some(mut hand) = ByHand::new().await else {
        return;
    };
    for _ in 0..2 {
        by_hand(&mut hand.admin, &SCRIPTS, usize::MAX).await;
        hand.works().await;
    }
    hand.end().await;
}

#[tokio::test]
async fn a_script_that_failed_to_add_the_columns_does_not_promise_them() {
    let Some(mut hand) = ByHand::new().await else {
        return;
    };
    by_hand(&mut hand.admin, &SCRIPTS[..1], usize::MAX).await;
    for (script, column) in [(SCRIPTS[1], "next_until"), (SCRIPTS[3], "shared")] {
        let (_, promise) = script.rsplit_once("-- Last").unwrap();
        let promise = format!("-- {promise}");
        let error = sqlx::raw_sql(sqlx::AssertSqlSafe(promise))
            .execute(&mut hand.admin)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(column), "{error}");
    }
    let (kind, text) = kind(hand.store().check_schema().await);
    assert_eq!(kind, StoreErrorKind::Schema);
    assert!(text.contains("locks.admin().migrate()"), "{text}");
    hand.end().await;
}

#[tokio::test]
async fn a_migration_that_was_interrupted_anywhere_is_finished_and_keeps_the_rows() {
    for statements in 0..=9 {
        let Some(mut hand) = ByHand::new().await else {
            return;
        };
        by_hand(&mut hand.admin, &SCRIPTS, statements).await;
        let has_rows = statements >= 1;
        if has_rows {
            let row = "INSERT INTO distributed_lock (lock_key, lock_owner, reentrant_count, expire_at, lease_id, \
                       fence_token, fence_ceiling, wanted_until, acquired_at, holder, revoked) \
                       VALUES ('old', '0123456789abcdef', 1, 1, 'fedcba9876543210', 7, 8, 0, 0, 'me', FALSE)";
            run(&mut hand.admin, row).await;
        }
        let stores: Vec<_> = (0..4).map(|_| hand.store()).collect();
        for done in futures_util::future::join_all(stores.iter().map(Store::migrate)).await {
            done.unwrap();
        }
        hand.works().await;
        if has_rows {
            let old = row(&stores[0], "old").await;
            assert_eq!((old.fence_token, old.fence_ceiling, old.next), (7, 8, None));
            let taken = one(&stores[0], acquire("old")).await;
            assert!(
                matches!(&taken, Outcome::Granted { taken_over: Some(former), .. } if former.name == "me")
            );
        }
        hand.end().await;
    }
}
