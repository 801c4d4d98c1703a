//! The suite for drivers, over SeaORM.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::fence::FenceConnection;
use dblock::store::Store;
use dblock_conformance::{End, FenceFixture, Fixture};
use dblock_sea_orm::fence;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind};
use sea_orm::{
    DatabaseConnection, SqlxMySqlConnector, SqlxPostgresConnector, SqlxSqliteConnector, TransactionTrait,
};

struct OverSeaOrm(Backend);

impl OverSeaOrm {
    async fn new(kind: Kind) -> Option<Self> {
        Backend::new(kind).await.map(Self)
    }

    fn database(&self) -> DatabaseConnection {
        match self.0.place() {
            Place::Postgres(pool, _) => SqlxPostgresConnector::from_sqlx_postgres_pool(pool.clone()),
            Place::MySql(pool, _) => SqlxMySqlConnector::from_sqlx_mysql_pool(pool.clone()),
            Place::Sqlite(pool, _) => SqlxSqliteConnector::from_sqlx_sqlite_pool(pool.clone()),
            Place::Memory(_) => unreachable!("it has no transactions"),
        }
    }
}

impl Fixture for OverSeaOrm {
    async fn store(&self) -> Arc<dyn Store> {
        self.0.store().await
    }
}

impl FenceFixture for OverSeaOrm {
    async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
        let transaction = self.database().begin().await.unwrap();
        match body(&mut fence(&transaction)).await {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
        }
    }
}

/// One line a database.
macro_rules! fence_conformance_of {
    ($store:ident, $kind:ident) => {
        mod $store {
            use super::{Kind, OverSeaOrm};

            dblock_conformance::fence_conformance!(OverSeaOrm::new(Kind::$kind).await);
        }
    };
}

fence_conformance_of!(postgres, Postgres);
fence_conformance_of!(mysql, MySql);
fence_conformance_of!(sqlite, Sqlite);
