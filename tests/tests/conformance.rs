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

/// A store on a server: each fixture has a table of its own.
macro_rules! server_conformance {
    ($store:ident, $url:path) => {
        mod $store {
            use std::sync::Arc;

            use dblock::conformance::{Fixture, open};
            use dblock::store::Store;

            struct Server {
                url: String,
                table: String,
            }

            impl Fixture for Server {
                async fn store(&self) -> Arc<dyn Store> {
                    let options = self.url.parse().unwrap();
                    let store = open::$store::open(options, &self.table).unwrap();
                    store.migrate().await.unwrap();
                    store
                }
            }

            fn server() -> Option<Server> {
                let table = format!("locks_{}", uuid::Uuid::now_v7().simple());
                $url().map(|url| Server { url, table })
            }

            dblock::store_conformance!(server());
        }
    };
}

server_conformance!(postgres, dblock_tests::postgres_url);
server_conformance!(mysql, dblock_tests::mysql_url);

/// The `PostgreSQL` store in sessions that it shares with others.
mod postgres_through_pgbouncer {
    use std::sync::Arc;

    use dblock::conformance::{Fixture, open};
    use dblock::store::Store;
    use dblock_tests::pgbouncer::{PgBouncer, Setup};

    struct Pooled {
        bouncer: PgBouncer,
        table: String,
    }

    impl Fixture for Pooled {
        async fn store(&self) -> Arc<dyn Store> {
            let options = self.bouncer.url().parse().unwrap();
            let store = open::postgres::open(options, &self.table).unwrap();
            store.migrate().await.unwrap();
            store
        }
    }

    fn pooled() -> Option<Pooled> {
        let table = format!("locks_{}", uuid::Uuid::now_v7().simple());
        PgBouncer::start(Setup::Refuses).map(|bouncer| Pooled { bouncer, table })
    }

    dblock::store_conformance!(pooled());
}
