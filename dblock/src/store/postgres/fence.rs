//! The fence check in a user's transaction.

use std::time::Duration;

use super::{error, sql};
use crate::store::fence::{
    Database, Dialect, DriverError, FenceCheck, FenceConnection, ReadsRelease, time_left, unreadable,
};
use crate::store::{StoreError, StoreErrorKind, StoreFuture};

#[derive(Debug)]
pub(super) struct Postgres;

impl Dialect for Postgres {
    fn database(&self) -> Database {
        Database::Postgres
    }

    /// One statement for all.
    ///
    /// The server ends the transaction when it has idled for the source's `idle_limit`. Otherwise a host that
    /// vanished would keep the keys busy until TCP notices, which may take hours.
    ///
    /// # Errors
    /// [`StoreErrorKind::Conflict`] under REPEATABLE READ or stricter, when a row was written after the snapshot
    /// (by a renewal, for example) or is not in the snapshot. The transaction can be tried again.
    fn verify<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> StoreFuture<'a, Result<Vec<Option<Duration>>, StoreError>> {
        Box::pin(async move {
            let answers = ask(connection, checks, sql::verify).await?;
            let left = |answer: Option<String>| answer.as_deref().map(time_left).transpose();
            answers.into_iter().map(left).collect()
        })
    }

    /// Others are woken when the transaction commits. One statement for all.
    ///
    /// # Errors
    /// As [`verify`](Self::verify), and [`StoreErrorKind::Unsupported`] below a savepoint: rolled back to it, the
    /// transaction would go on without the locks.
    fn release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> StoreFuture<'a, Result<Vec<bool>, StoreError>> {
        Box::pin(async move {
            let answers = ask(connection, checks, sql::release_in).await?;
            if answers.contains(&None) {
                // A lease is gone, or newer than the snapshot, which is an error of the check.
                self.verify(connection, checks).await?;
            }
            let released = |answer: Option<String>| match answer.as_deref() {
                None => Ok(false),
                Some(sql::RELEASED_WHOLE) => Ok(true),
                Some(sql::BELOW_SAVEPOINT) => Err(StoreError::new(
                    StoreErrorKind::Unsupported,
                    "a lock cannot end with a savepoint: release it in the transaction itself, before `SAVEPOINT`",
                )),
                Some(other) => Err(unreadable(other)),
            };
            answers.into_iter().map(released).collect()
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
            Ok(row.map_or(ReadsRelease::NotWritten, |_| ReadsRelease::WrittenHere))
        })
    }

    #[cfg(feature = "run_once")]
    fn complete(&self, records: &str) -> String {
        sql::complete_in(records)
    }

    fn failed(&self, error: DriverError) -> StoreError {
        error::of_fence_check(error)
    }

    fn still_runs<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        check: &'a FenceCheck<'a>,
        is_kept: bool,
    ) -> StoreFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            if is_kept {
                return Ok(self.reads_release(connection, check).await? == ReadsRelease::WrittenHere);
            }
            // A transaction that has failed runs nothing.
            check.source.query(connection, "SELECT 'open'", []).await?;
            Ok(true)
        })
    }
}

/// The answers of a statement; `None` for a lease that it does not find.
async fn ask(
    connection: &mut dyn FenceConnection,
    checks: &[FenceCheck<'_>],
    sql: impl FnOnce(&str, Option<Duration>, usize) -> String,
) -> Result<Vec<Option<String>>, StoreError> {
    let Some(FenceCheck { source, .. }) = checks.first() else {
        return Ok(Vec::new());
    };
    let sql = sql(&source.table, source.idle_limit, checks.len());
    let values: Vec<_> = checks.iter().flat_map(FenceCheck::values).collect();
    let rows = source.query(connection, &sql, values).await?;
    let mut answers = vec![None; checks.len()];
    for row in rows {
        let numbered = row.split_once(' ');
        let numbered = numbered.and_then(|(at, answer)| Some((at.parse::<usize>().ok()?, answer)));
        let place = numbered.and_then(|(at, answer)| Some((answers.get_mut(at)?, answer)));
        match place {
            Some((_, sql::NOT_IN_SNAPSHOT)) => {
                return Err(StoreError::new(
                    StoreErrorKind::Conflict,
                    "the transaction's snapshot is older than the lock's row, unless the transaction is on another \
                     database or schema: roll it back and begin it anew inside the lock, before anything is read",
                ));
            }
            Some((place @ None, answer)) => *place = Some(answer.to_owned()),
            _ => return Err(unreadable(&row)),
        }
    }
    Ok(answers)
}
