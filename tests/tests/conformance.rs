//! Every store keeps the contract.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod memory {
    use std::sync::Arc;

    use dblock::conformance::Fixture;
    use dblock::store::Store;
    use dblock::store::memory::MemoryStore;

    struct Memory(MemoryStore);

    impl Fixture for Memory {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }
    }

    dblock::store_conformance!(Some(Memory(MemoryStore::new())));
}

mod sqlite {
    use std::sync::Arc;

    use dblock::conformance::{Fixture, open};
    use dblock::store::Store;
    use sqlx::sqlite::SqliteConnectOptions;
    use tempfile::TempDir;

    struct Sqlite(TempDir);

    impl Fixture for Sqlite {
        async fn store(&self) -> Arc<dyn Store> {
            let options = SqliteConnectOptions::new()
                .filename(self.0.path().join("locks.db"))
                .create_if_missing(true);
            let store = open::sqlite::open(options, "distributed_lock").unwrap();
            store.migrate().await.unwrap();
            store
        }
    }

    dblock::store_conformance!(Some(Sqlite(tempfile::tempdir().unwrap())));
}
