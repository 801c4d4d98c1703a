//! A lock store of one's own: all rows in one JSON file, for processes of one host.
//!
//! It is here to show what a store is made of, and is honest about what it is: every call reads and writes
//! the whole file, so it is slow, but it keeps the contract, which `examples/tests/custom_store.rs` shows
//! with one line.
//!
//! # How to write a store
//! 1. **One place, one clock.** Every process that shares the locks must see the same rows and the same
//!    clock. Here: one file, and the host's clock, kept from falling ([`file`]). A database would use its own
//!    clock.
//! 2. **The rules.** [`Store::apply`] has a table: what each request does to a row in each state. It is the
//!    law, and [`rules`](dblock::store::rules) carries it out on a row in Rust (`table.rs`); a store can also
//!    say it in its database's language. Decide and write under the row's lock, never apart.
//! 3. **Batches.** A call has up to some hundred requests, each for another key, and answers each by itself.
//!    One round trip for all of them is what makes the engine fast; a loop is right, too.
//! 4. **Errors say what is known.** `Unreachable` and `Conflict`: nothing was carried out. `Interrupted`:
//!    nobody knows. The engine then settles the outcome, so a store never sends anything again by itself.
//! 5. **No waiting.** A row that is locked by somebody else is `Skipped`. Waiting, renewing and retrying are
//!    the engine's.
//! 6. **Capabilities.** Say what the store can do; the defaults promise little, and all of it is optional.
//! 7. **Run the suite.** `dblock_conformance::store_conformance!` needs a
//!    [`Fixture`](https://docs.rs/dblock-conformance/latest/dblock_conformance/trait.Fixture.html): fresh
//!    rows for each check.
//!
//! Programs use it as any other store: `LockManager::builder(FileStore::new(path))`. If it is a crate of its own, it
//! depends on `dblock-core`, which has the contract, and on nothing else of dblock.

mod file;
mod table;

use std::path::PathBuf;
use std::time::Duration;

use dblock::store::{Capabilities, Outcome, Purged, Request, Store, StoreError, StoreErrorKind, StoreFuture};
use dblock::{InspectFilter, Key, LockRow};

use self::file::Change;
use self::table::Table;

/// Rows in one JSON file. Handles on the same file share them, in this process and in others of this host.
#[derive(Debug, Clone)]
pub struct FileStore {
    path: PathBuf,
}

impl FileStore {
    /// A store in the file at `path`. The file is made by the first lock; its folder must be there.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Works on the table while no other process does.
    ///
    /// On a thread for blocking work: the engine's own must go on renewing. When the engine gives the call
    /// up, the thread ends it all the same, which the engine expects of a call that it gave up.
    fn with_table<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Table) -> Change<T> + Send + 'static,
    ) -> StoreFuture<'static, Result<T, StoreError>> {
        let path = self.path.clone();
        Box::pin(async move {
            let worked = tokio::task::spawn_blocking(move || file::with_table(&path, work)).await;
            worked.unwrap_or_else(|error| {
                Err(
                    StoreError::new(StoreErrorKind::Interrupted, "the work on the lock file panicked")
                        .with_source(error),
                )
            })
        })
    }
}

impl Store for FileStore {
    fn capabilities(&self) -> Capabilities {
        // Its own thread, one call at a time, no fence check in SQL, and nobody is told of releases.
        let mut capabilities = Capabilities::new("file");
        // Rows of unused keys stay in the file until somebody calls `purge`.
        capabilities.purge = true;
        // The rules raise them.
        capabilities.raises_tokens = true;
        capabilities
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        let owned = requests.to_vec();
        let applied = self.with_table(move |table| {
            Change::Write(
                owned
                    .iter()
                    .map(|request| table.apply(request))
                    .collect::<Vec<_>>(),
            )
        });
        Box::pin(async move {
            match applied.await {
                Ok(answers) => answers,
                Err(error) => requests.iter().map(|_| Err(error.clone())).collect(),
            }
        })
    }

    /// There are no tables, so there is nothing to check but that the file can be read.
    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.with_table(|_| Change::Nothing(()))
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.check_schema()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        let filter = filter.clone();
        self.with_table(move |table| Change::Nothing(table.inspect(&filter)))
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        let key = key.clone();
        self.with_table(move |table| Change::Write(table.revoke(&key)))
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        let key = key.clone();
        self.with_table(move |table| Change::Write(table.force_release(&key)))
    }

    fn purge<'a>(
        &'a self,
        idle: Duration,
        after: Option<&'a Key>,
        limit: u32,
    ) -> StoreFuture<'a, Result<Purged, StoreError>> {
        let after = after.cloned();
        self.with_table(move |table| Change::Write(table.purge(idle, after.as_ref(), limit)))
    }

    /// Nothing is kept open between calls.
    fn close(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {})
    }
}
