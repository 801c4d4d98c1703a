//! The mark of a transaction of our own.

use super::{Database, DriverError, FenceConnection, FenceStatement};
use crate::store::StoreFuture;

/// A transaction of our own, over sqlx, that is marked in one message with its first statement. Where that fails, the
/// driver knows that the transaction is open, which it would not if the message that begins it had failed.
pub(crate) struct Marking<'t> {
    transaction: &'t mut dyn FenceConnection,
    mark: Option<&'static str>,
}

impl<'t> Marking<'t> {
    pub(crate) fn new(transaction: &'t mut dyn FenceConnection, mark: Option<&'static str>) -> Self {
        Self { transaction, mark }
    }
}

impl FenceConnection for Marking<'_> {
    fn database(&self) -> Database {
        self.transaction.database()
    }

    fn query<'a>(
        &'a mut self,
        statement: &'a FenceStatement,
    ) -> StoreFuture<'a, Result<Vec<String>, DriverError>> {
        match self.mark.take() {
            None => self.transaction.query(statement),
            Some(mark) => Box::pin(async move { self.transaction.query(&statement.after(mark)).await }),
        }
    }

    fn execute<'a>(&'a mut self, statement: &'a FenceStatement) -> StoreFuture<'a, Result<u64, DriverError>> {
        match self.mark.take() {
            None => self.transaction.execute(statement),
            Some(mark) => Box::pin(async move { self.transaction.execute(&statement.after(mark)).await }),
        }
    }
}
