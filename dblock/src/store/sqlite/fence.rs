//! The fence check in a user's transaction.

use std::time::Duration;

use super::{error, sql};
use crate::store::fence::{
    Answers, Asked, Database, Dialect, DriverError, FenceCheck, FenceConnection, ReadsRelease, TransactionId,
    time_left,
};
use crate::store::{StoreError, StoreFuture};

#[derive(Debug)]
pub(super) struct Sqlite;

impl Dialect for Sqlite {
    fn database(&self) -> Database {
        Database::Sqlite
    }

    /// A statement for each key costs no round trip here.
    ///
    /// The check writes (a column to its own value), so it needs SQLite's only write lock. A transaction whose
    /// snapshot is older than the last commit then fails as a conflict and does not trust an old row. Until the
    /// user's commit nobody else can take the lock over.
    fn verify<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> Answers<'a, (Duration, TransactionId)> {
        Box::pin(async move {
            let mut left = Vec::with_capacity(checks.len());
            for check in checks {
                let answer = check.row(connection, &sql::verify(&check.source.table)).await?;
                left.push(match answer {
                    Some(answer) => Asked::Found((time_left(&answer)?, TransactionId::new())),
                    None => Asked::Gone,
                });
            }
            Ok(left)
        })
    }

    fn release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> Answers<'a, TransactionId> {
        Box::pin(async move {
            let mut released = Vec::with_capacity(checks.len());
            for check in checks {
                let sql = sql::release_in(&check.source.table);
                let written = check.source.writes(connection, &sql, check.values()).await?;
                released.push(if written {
                    Asked::Found(TransactionId::new())
                } else {
                    Asked::Gone
                });
            }
            Ok(released)
        })
    }

    fn reads_release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        check: &'a FenceCheck<'a>,
    ) -> StoreFuture<'a, Result<ReadsRelease, StoreError>> {
        Box::pin(async move {
            let row = check
                .row(connection, &sql::reads_release(&check.source.table))
                .await?;
            Ok(row.map_or(ReadsRelease::NotWritten, |_| ReadsRelease::Written))
        })
    }

    #[cfg(feature = "run_once")]
    fn complete(&self, records: &str) -> String {
        sql::complete_in(records)
    }

    fn failed(&self, error: DriverError) -> StoreError {
        error::of_fence_check(error)
    }

    fn has_one_writer(&self) -> bool {
        true
    }
}
