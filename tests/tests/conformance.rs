//! Every store keeps the contract, and works through a manager: both suites, on each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(unreachable_pub, reason = "it is a module of the examples")]
#[path = "../../examples/custom_store/mod.rs"]
mod example;

use std::sync::Arc;

use dblock::store::Store;
use dblock_conformance::Fixture;
use dblock_sharded::ShardedStore;

/// One line a store.
macro_rules! conformance_of {
    ($store:ident, $kind:ident) => {
        mod $store {
            dblock_tests::conformance!(dblock_tests::Backend::new(dblock_tests::Kind::$kind).await);
        }
    };
}

conformance_of!(memory, Memory);
conformance_of!(sqlite, Sqlite);
conformance_of!(postgres, Postgres);
conformance_of!(mysql, MySql);

/// The memory store with wake-ups, which the tests of the engine use.
mod telling {
    use std::sync::Arc;

    use dblock::store::Store;
    use dblock::{LockRow, open};
    use dblock_conformance::Fixture;
    use dblock_tests::telling_store::TellingStore;

    struct Telling(TellingStore);

    impl Fixture for Telling {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(self.0.clone())
        }

        async fn place(&self, rows: &[LockRow]) -> bool {
            open::memory::place(self.0.rows(), rows);
            true
        }
    }

    dblock_tests::conformance!(Some(Telling(TellingStore::new())));
}

/// The `PostgreSQL` store in sessions that it shares with others.
mod postgres_through_pgbouncer {
    use std::sync::Arc;

    use dblock::open;
    use dblock::store::Store;
    use dblock_conformance::Fixture;
    use dblock_servers::Server;
    use dblock_servers::pgbouncer::Setup;
    use dblock_tests::own_server::pgbouncer;

    struct Pooled {
        bouncer: Server,
        table: String,
    }

    impl Pooled {
        fn handle(&self, table: &str) -> Arc<dyn Store> {
            open::postgres::open(self.bouncer.url().parse().unwrap(), table).unwrap()
        }
    }

    impl Fixture for Pooled {
        async fn store(&self) -> Arc<dyn Store> {
            let store = self.handle(&self.table);
            store.migrate().await.unwrap();
            store
        }

        async fn bare(&self) -> Option<Arc<dyn Store>> {
            Some(self.handle(&format!("{}_bare", self.table)))
        }

        fn hears(&self) -> bool {
            false
        }
    }

    async fn pooled() -> Option<Pooled> {
        let table = format!("pooled_{}", uuid::Uuid::now_v7().simple());
        pgbouncer(Setup::Refuses)
            .await
            .map(|bouncer| Pooled { bouncer, table })
    }

    dblock_tests::conformance!(pooled().await);
}

/// Two shards that tell of releases.
mod sharded_telling {
    use std::sync::Arc;

    use dblock::store::Store;
    use dblock_conformance::Fixture;
    use dblock_tests::telling_store::TellingStore;

    struct Telling([TellingStore; 2]);

    impl Fixture for Telling {
        async fn store(&self) -> Arc<dyn Store> {
            super::sharded(self.0.clone().map(|shard| Arc::new(shard) as _))
        }
    }

    dblock_tests::conformance!(Some(Telling(Default::default())));
}

/// The part of the suite that needs wake-ups of databases.
mod sharded_postgres {
    dblock_conformance::store_conformance!(
        @tests super::Shards::new(dblock_tests::Kind::Postgres, false).await =>
        releases_of_wanted_keys_are_told,
        passed_on_rows_are_told,
        listening_can_be_dropped,
        batch_of_a_hundred_keys,
        crossing_batches_exclude_each_other,
    );
    dblock_tests::manager_conformance!(
        @tests super::Shards::new(dblock_tests::Kind::Postgres, false).await =>
        a_waiter_gets_in_soon_after_the_release,
        tasks_of_two_managers_never_overlap,
        runs_once_or_says_that_it_cannot,
    );
}

/// All keys move from one shard to another.
mod moving_memory {
    dblock_tests::conformance!(super::Shards::new(dblock_tests::Kind::Memory, true).await);
}

/// Here each request to a row takes its time, so what happens between the two rows is met.
mod moving_postgres {
    dblock_tests::conformance!(super::Shards::new(dblock_tests::Kind::Postgres, true).await);
}

fn sharded([a, b]: [Arc<dyn Store>; 2]) -> Arc<dyn Store> {
    Arc::new(ShardedStore::new([("a", a), ("b", b)]).unwrap())
}

struct Shards {
    shards: [dblock_tests::Backend; 2],
    moves: bool,
}

impl Shards {
    async fn new(kind: dblock_tests::Kind, moves: bool) -> Option<Self> {
        let backend = || dblock_tests::Backend::new(kind);
        let shards = [backend().await?, backend().await?];
        Some(Self { shards, moves })
    }

    fn over(&self, [a, b]: [Arc<dyn Store>; 2]) -> Arc<dyn Store> {
        if !self.moves {
            return sharded([a, b]);
        }
        let (old, new) = (ShardedStore::new([("a", a)]), ShardedStore::new([("b", b)]));
        Arc::new(old.unwrap().moving_to(new.unwrap()).unwrap())
    }
}

impl Fixture for Shards {
    async fn store(&self) -> Arc<dyn Store> {
        let [a, b] = &self.shards;
        self.over([a.store().await, b.store().await])
    }

    async fn bare(&self) -> Option<Arc<dyn Store>> {
        let [a, b] = &self.shards;
        Some(self.over([a.bare().await?, b.bare().await?]))
    }

    fn one_row(&self) -> bool {
        !self.moves
    }
}

/// The store of `examples/custom_store`. That it keeps the contract is tested there.
mod custom_store {
    use std::sync::Arc;

    use dblock::store::Store;
    use dblock_conformance::Fixture;
    use tempfile::TempDir;

    use super::example::FileStore;

    struct InAFolder(TempDir);

    impl Fixture for InAFolder {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(FileStore::new(self.0.path().join("locks.json")))
        }
    }

    dblock_tests::manager_conformance!(Some(InAFolder(tempfile::tempdir().unwrap())));
}

/// A store that takes the answer to a dropped request for that of the next one, as over a connection that was given back
/// too soon.
mod out_of_step {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};

    use dblock::store::{Capabilities, MemoryStore, Outcome, Request, Store, StoreError, StoreFuture};
    use dblock_conformance::{Fixture, dropped_requests_leave_the_store_usable, forward_to_inner};
    use tokio::task::yield_now;

    #[derive(Debug, Default)]
    struct OutOfStep {
        inner: MemoryStore,
        unanswered: Mutex<VecDeque<Vec<Request>>>,
    }

    impl Store for OutOfStep {
        fn capabilities(&self) -> Capabilities {
            self.inner.capabilities()
        }

        fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
            Box::pin(async move {
                self.unanswered.lock().unwrap().push_back(requests.to_vec());
                yield_now().await;
                let first = self.unanswered.lock().unwrap().pop_front().unwrap();
                self.inner.apply(&first).await
            })
        }

        forward_to_inner!();
    }

    impl Fixture for OutOfStep {
        async fn store(&self) -> Arc<dyn Store> {
            Arc::new(Self::default())
        }
    }

    #[tokio::test]
    #[should_panic(expected = "was answered with")]
    async fn is_found() {
        dropped_requests_leave_the_store_usable(&OutOfStep::default()).await;
    }
}

/// A check that is not in the list of its macro would never run.
#[test]
fn the_lists_have_every_check() {
    let top = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let kit = format!("{top}/dblock-conformance/src");
    let here = format!("{top}/tests/support/through_manager");
    let mut checks = 0;
    for (folder, list) in [(&kit, format!("{kit}/lib.rs")), (&here, format!("{here}.rs"))] {
        let list = std::fs::read_to_string(list).expect("the list");
        for file in std::fs::read_dir(folder).expect("the folder of the checks") {
            let path = file.expect("a file").path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a file of checks");
            let names = text
                .split("\npub async fn ")
                .skip(1)
                .filter_map(|rest| rest.split_once("(fixture: &dyn AnyFixture)"))
                .map(|(name, _)| name)
                .filter(|name| !name.contains(char::is_whitespace));
            for name in names {
                checks += 1;
                assert!(
                    list.contains(&format!("            {name},\n")),
                    "{name} of {} is missing",
                    path.display()
                );
            }
        }
    }
    assert!(checks > 150, "only {checks} checks were found");
}
