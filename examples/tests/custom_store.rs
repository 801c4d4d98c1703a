//! The store of `examples/custom_store` keeps the contract: the whole suite, in one line.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use dblock::store::Store;
use dblock_conformance::Fixture;
use dblock_examples::custom_store::FileStore;
use tempfile::TempDir;

struct InAFolder(TempDir);

impl Fixture for InAFolder {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(FileStore::new(self.0.path().join("locks.json")))
    }
}

dblock_conformance::store_conformance!(Some(InAFolder(tempfile::tempdir().unwrap())));
