//! A transaction that counts the statements in it. Each is a round trip.

use dblock::fence::{Database, DriverError, FenceConnection, FenceStatement};
use dblock::store::StoreFuture;

/// Passes statements on, and counts them.
#[allow(missing_debug_implementations, reason = "connections have none")]
pub struct Counting<'c> {
    inner: &'c mut dyn FenceConnection,
    /// How many statements there were.
    pub statements: usize,
}

impl<'c> Counting<'c> {
    /// Counts what is done over `inner` from here on.
    pub fn new(inner: &'c mut dyn FenceConnection) -> Self {
        Self { inner, statements: 0 }
    }
}

impl FenceConnection for Counting<'_> {
    fn database(&self) -> Database {
        self.inner.database()
    }

    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
        self.statements += 1;
        self.inner.query(statement)
    }

    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
        self.statements += 1;
        self.inner.execute(statement)
    }
}
