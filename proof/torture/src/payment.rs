//! Transfers whose lock on one account ends with their transaction.

use std::fmt;
use std::time::Duration;

use dblock::fence::FenceConnection;
use dblock::{CurrentLock, LockError, LockManager, LockOptions, begin, distributed_lock};
use sqlx::{AssertSqlSafe, Database, Executor, FromRow, IntoArguments, Pool, Transaction};

use crate::bank::Transfer;

/// Why the work of a transfer, of a transaction or of a run was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    Lock(LockError),
    Database,
    /// The body was to fail.
    Planned,
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for Failure {
    fn from(_: sqlx::Error) -> Self {
        Self::Database
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Database | Self::Planned => f.write_str("the work was not done"),
        }
    }
}

/// A transfer under the lock of one account, which it takes, and of the other, which it checks.
pub(crate) struct Payment<'a> {
    pub(crate) transfer: Transfer,
    pub(crate) key: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    /// The lock of the other account.
    pub(crate) outer: &'a CurrentLock,
}

impl Payment<'_> {
    /// Makes the transfer in a transaction of the caller's (`own`) or of the library's. A transfer that fails
    /// may have been committed.
    pub(crate) async fn make<DB>(
        &self,
        locks: &LockManager,
        pool: &Pool<DB>,
        own: bool,
    ) -> Result<(), Failure>
    where
        DB: Database,
        Transaction<'static, DB>: FenceConnection,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        (i64,): for<'r> FromRow<'r, DB::Row>,
        DB::Arguments: IntoArguments<DB>,
    {
        if own {
            let mut tx = begin(pool).await?;
            self.with_lock(locks, &mut tx).await?;
            return Ok(tx.commit().await?);
        }
        let options = LockOptions::new().ttl(self.ttl).wait(self.wait);
        let call = locks
            .lock(self.key)
            .options(&options)
            .transaction(pool, async |mut tx| self.pay(&mut tx).await);
        call.await
    }

    #[distributed_lock(key = self.key, ttl = self.ttl, wait = self.wait, manager = locks, tx = tx)]
    async fn with_lock<DB>(
        &self,
        locks: &LockManager,
        tx: &mut Transaction<'static, DB>,
    ) -> Result<(), Failure>
    where
        DB: Database,
        Transaction<'static, DB>: FenceConnection,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        (i64,): for<'r> FromRow<'r, DB::Row>,
        DB::Arguments: IntoArguments<DB>,
    {
        self.pay(tx).await
    }

    async fn pay<DB>(&self, tx: &mut Transaction<'static, DB>) -> Result<(), Failure>
    where
        DB: Database,
        Transaction<'static, DB>: FenceConnection,
        for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
        (i64,): for<'r> FromRow<'r, DB::Row>,
        DB::Arguments: IntoArguments<DB>,
    {
        self.outer.verify_in(tx).await?;
        let Transfer { id, from, to, amount } = self.transfer;
        for (account, amount) in [(from, -amount), (to, amount)] {
            let read = format!("SELECT balance FROM torture_account WHERE id = {account}");
            let read = sqlx::query_scalar(AssertSqlSafe(read));
            let balance: i64 = read.fetch_one(&mut **tx).await?;
            for write in [
                format!(
                    "UPDATE torture_account SET balance = {} WHERE id = {account}",
                    balance + amount
                ),
                format!("INSERT INTO torture_ledger VALUES ({id}, {account}, {amount})"),
            ] {
                let write = sqlx::query(AssertSqlSafe(write));
                write.execute(&mut **tx).await?;
            }
        }
        Ok(())
    }
}
