//! The whole suite, on a real server.

use std::sync::Arc;

use dblock_conformance::Fixture;
use dblock_core::store::Store;
use uuid::Uuid;

use super::EtcdStore;

/// Keys of their own in the etcd of `DBLOCK_TEST_ETCD_URL`.
struct Place {
    url: String,
    prefix: String,
}

impl Place {
    fn new() -> Option<Self> {
        let prefix = format!("suite_{}", Uuid::now_v7().simple());
        dblock_tests::etcd_url().map(|url| Self { url, prefix })
    }
}

impl Fixture for Place {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(EtcdStore::new([&self.url]).unwrap().prefix(&self.prefix))
    }
}

dblock_tests::conformance!(Place::new());
