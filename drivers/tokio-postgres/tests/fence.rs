//! The suite for drivers, over tokio-postgres and over deadpool-postgres.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::fence::FenceConnection;
use dblock::store::Store;
use dblock_conformance::{End, FenceFixture, Fixture};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind};
use dblock_tokio_postgres::fence;
use tokio_postgres::{Config, NoTls};

async fn backend() -> Option<Backend> {
    Backend::new(Kind::Postgres).await
}

fn config(backend: &Backend) -> Config {
    let Place::Postgres(_, url) = backend.place() else {
        unreachable!()
    };
    url.parse().unwrap()
}

struct Plain(Backend);

impl Fixture for Plain {
    async fn store(&self) -> Arc<dyn Store> {
        self.0.store().await
    }
}

impl FenceFixture for Plain {
    async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
        let (mut client, connection) = config(&self.0).connect(NoTls).await.unwrap();
        tokio::spawn(connection);
        let transaction = client.transaction().await.unwrap();
        match body(&mut fence(&transaction)).await {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
        }
    }
}

mod plain {
    use super::{Plain, backend};

    dblock_conformance::fence_conformance!(backend().await.map(Plain));
}

struct Pooled {
    backend: Backend,
    pool: deadpool_postgres::Pool,
}

impl Pooled {
    async fn new() -> Option<Self> {
        let backend = backend().await?;
        let manager = deadpool_postgres::Manager::new(config(&backend), NoTls);
        let pool = deadpool_postgres::Pool::builder(manager).build().unwrap();
        Some(Self { backend, pool })
    }
}

impl Fixture for Pooled {
    async fn store(&self) -> Arc<dyn Store> {
        self.backend.store().await
    }
}

impl FenceFixture for Pooled {
    async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
        let mut client = self.pool.get().await.unwrap();
        let transaction = client.transaction().await.unwrap();
        match body(&mut fence(&transaction)).await {
            End::Commit => transaction.commit().await.unwrap(),
            End::Rollback => transaction.rollback().await.unwrap(),
        }
    }
}

mod pooled {
    use super::Pooled;

    dblock_conformance::fence_conformance!(Pooled::new().await);
}
