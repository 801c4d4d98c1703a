//! What the checks share: managers on the fixture's rows, and the reading of the rows past them.

use std::sync::Arc;
use std::time::Duration;

use dblock::store::Store;
use dblock::{LockManager, LockOptions, LockRow};
use dblock_conformance::TIMEOUT;
use dblock_conformance::context::{self, Asker, key};
use tokio::time::Instant;

use super::AnyFixture;

/// Too long to run out during a check: the ttl where none is given.
pub(super) const LONG: Duration = LockOptions::DEFAULT_TTL;

/// The shortest ttl of most stores.
pub(super) const SHORT: Duration = Duration::from_secs(1);

/// The ttl of a renewed lease: a renewal is due after a third of it, and may be five seconds late on a machine
/// that stalls.
pub(super) const RENEWED: Duration = Duration::from_secs(9);

/// How soon background work that waits for no ttl is done.
const SOON: Duration = Duration::from_secs(10);

/// The rows of one check.
pub(super) struct Setup<'f> {
    fixture: &'f dyn AnyFixture,
    /// A handle that no manager has.
    look: Arc<dyn Store>,
}

impl<'f> Setup<'f> {
    pub(super) async fn new(fixture: &'f dyn AnyFixture) -> Self {
        let look = fixture.store().await;
        Self { fixture, look }
    }

    /// A new manager on the rows, over a handle of its own: what another process would have.
    pub(super) async fn manager(&self) -> LockManager {
        let manager = LockManager::builder(self.fixture.store().await).build().await;
        manager.unwrap_or_else(|error| panic!("no manager over the store: {error}"))
    }

    /// Whether the rows tell exact times.
    pub(super) fn has_clock(&self) -> bool {
        self.look.capabilities().clock
    }

    /// Whether the store can check a fence token in a transaction of the user's.
    pub(super) fn verifies(&self) -> bool {
        self.look.capabilities().verify_in
    }

    /// Whether the store has shared and limited locks.
    pub(super) fn shares(&self) -> bool {
        self.look.capabilities().shares
    }

    /// The row of a key that has one.
    pub(super) async fn the_row(&self, name: &str) -> LockRow {
        context::existing(&*self.look, &key(name)).await
    }

    /// Whether the row of a key has no holds.
    pub(super) async fn is_free(&self, name: &str) -> bool {
        is_free(&self.the_row(name).await)
    }

    /// Reads the row until it is as `wished`. The row.
    pub(super) async fn until(&self, name: &str, wished: impl Fn(&LockRow) -> bool) -> LockRow {
        context::until(&*self.look, &key(name), "the row to change", wished).await
    }

    /// Waits until the row is free, which must be long before a ttl of 30 seconds.
    pub(super) async fn until_free(&self, name: &str) {
        let free = tokio::time::timeout(SOON, self.until(name, is_free)).await;
        assert!(free.is_ok(), "{name:?} is not free after {SOON:?}");
    }

    /// Leaves a lease of `ttl` behind, as if a process died inside.
    pub(super) async fn die_inside(&self, name: &str, ttl: Duration) -> LockRow {
        let mut dead = Asker::with_holder(name, "host/dead");
        context::granted_briefly(&*self.look, &mut dead, ttl, 0).await;
        self.the_row(name).await
    }
}

/// Whether the row was released, rather than expired.
pub(super) fn is_free(row: &LockRow) -> bool {
    row.reentrant_count == 0
}

/// Waits until `done` is true.
pub(super) async fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < TIMEOUT, "waited {TIMEOUT:?} for {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
