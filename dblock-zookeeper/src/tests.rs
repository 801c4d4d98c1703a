//! The whole suite, on a real server.

use std::sync::Arc;

use dblock::LockRow;
use dblock::store::Store;
use dblock_conformance::Fixture;
use futures_util::future::join_all;
use uuid::Uuid;

use super::{ZookeeperStore, rows};

/// Nodes of their own on the server of `DBLOCK_TEST_ZOOKEEPER_URL`.
struct Place {
    url: String,
}

impl Place {
    fn new() -> Option<Self> {
        let node = Uuid::now_v7().simple().to_string();
        dblock_tests::zookeeper_url().map(|url| Self {
            url: format!("{url}/suite/{node}"),
        })
    }

    fn open(&self) -> ZookeeperStore {
        ZookeeperStore::new(&self.url).unwrap()
    }
}

impl Fixture for Place {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    async fn place(&self, placed: &[LockRow]) -> bool {
        let ensemble = self.open().ensemble;
        let client = ensemble.client().await.unwrap();
        let keys: Vec<_> = placed.iter().map(|row| &row.key).collect();
        let found = rows::read(&ensemble, &client, &keys).await.unwrap();
        let written = found.into_iter().zip(placed).map(async |(found, row)| {
            let mut found = found.unwrap();
            found.row = row.clone();
            rows::put(&ensemble, &client, &found, None).await.unwrap()
        });
        join_all(written)
            .await
            .iter()
            .all(|put| *put == rows::Put::Written)
    }
}

dblock_conformance::store_conformance!(Place::new());
