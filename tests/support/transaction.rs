//! A transaction of the application's, on any of the databases.

use dblock::fence::FenceConnection;
use dblock::{CurrentLock, LockError, LockGuard, Run};
use dblock_conformance::{End, FenceFixture};
use sqlx::{AssertSqlSafe, MySql, Postgres, Sqlite};

use crate::Backend;
use crate::backend::Place;

/// A transaction on the database that keeps the locks.
#[derive(Debug)]
pub enum Transaction {
    /// On PostgreSQL.
    Postgres(sqlx::Transaction<'static, Postgres>),
    /// On MySQL or MariaDB.
    MySql(sqlx::Transaction<'static, MySql>),
    /// On the SQLite file.
    Sqlite(sqlx::Transaction<'static, Sqlite>),
}

/// Applies one expression to the transaction of whichever database.
macro_rules! on_any {
    ($transaction:expr, $inner:ident => $do:expr) => {
        match $transaction {
            Transaction::Postgres($inner) => $do,
            Transaction::MySql($inner) => $do,
            Transaction::Sqlite($inner) => $do,
        }
    };
}

impl Transaction {
    /// Begins one on the application's pool.
    ///
    /// # Panics
    /// On memory, which has no transactions.
    pub async fn begin(backend: &Backend) -> Self {
        match backend.place() {
            Place::Postgres(pool, _) => Self::Postgres(dblock::begin(pool).await.unwrap()),
            Place::MySql(pool, _) => Self::MySql(dblock::begin(pool).await.unwrap()),
            Place::Sqlite(pool, _) => Self::Sqlite(dblock::begin(pool).await.unwrap()),
            Place::Memory(_) => panic!("memory has no transactions"),
        }
    }

    /// Runs SQL in it.
    pub async fn execute(&mut self, sql: String) {
        let sql = AssertSqlSafe(sql);
        on_any!(self, inner => { sqlx::raw_sql(sql).execute(&mut **inner).await.unwrap(); });
    }

    /// The fence check of a guard.
    ///
    /// # Errors
    /// Those of the check.
    pub async fn verify(&mut self, guard: &LockGuard) -> Result<(), LockError> {
        on_any!(self, inner => guard.verify_in(inner).await)
    }

    /// The fence check of the body's lock.
    ///
    /// # Errors
    /// Those of the check.
    pub async fn verify_current(&mut self, lock: &CurrentLock) -> Result<(), LockError> {
        on_any!(self, inner => lock.verify_in(inner).await)
    }

    /// Ends the guard's lock with it.
    ///
    /// # Errors
    /// Those of the release.
    pub async fn release(&mut self, guard: LockGuard) -> Result<(), LockError> {
        on_any!(self, inner => guard.release_in(inner).await)
    }

    /// Completes a run with it.
    ///
    /// # Errors
    /// Those of `complete_in`.
    pub async fn complete(&mut self, run: &Run, value: &u32) -> Result<(), LockError> {
        on_any!(self, inner => run.complete_in(inner, value).await)
    }

    /// Takes back what it has done.
    pub async fn rollback(self) {
        on_any!(self, inner => inner.rollback().await.unwrap());
    }

    /// Ends it.
    pub async fn commit(self) {
        on_any!(self, inner => inner.commit().await.unwrap());
    }
}

impl FenceFixture for Backend {
    async fn transaction(&self, body: impl AsyncFnOnce(&mut dyn FenceConnection) -> End) {
        let mut transaction = Transaction::begin(self).await;
        let end = on_any!(&mut transaction, inner => body(inner).await);
        match end {
            End::Commit => transaction.commit().await,
            End::Rollback => transaction.rollback().await,
        }
    }
}
