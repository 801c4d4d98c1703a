//! The fence check in a user's transaction.

use std::time::Duration;

use dblock_core::store::rules::Took;

use super::{error, sql};
use crate::store::fence::take::{SKIPPED, took};
use crate::store::fence::{
    Answers, Asked, ByLease, Database, Dialect, DriverError, FenceCheck, FenceConnection, FenceSource,
    ReadsRelease, Take, Taken, TransactionId, time_left, unreadable,
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
    ) -> Answers<'a, (Duration, TransactionId)> {
        Box::pin(async move {
            let answers = ask(connection, checks, sql::verify).await?;
            let left = |answer: Option<String>| match answer.as_deref() {
                None => Ok(Asked::Gone),
                Some(SKIPPED) => Ok(Asked::Skipped),
                Some(answer) => {
                    let (left, id) = answer.split_once(' ').ok_or_else(|| unreadable(answer))?;
                    Ok(Asked::Found((time_left(left)?, id.to_owned())))
                }
            };
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
    ) -> Answers<'a, TransactionId> {
        Box::pin(async move {
            let answers = ask(connection, checks, sql::release_in).await?;
            let why = if answers.contains(&None) {
                // A lease is gone, or was skipped, or is newer than the snapshot, which is an error of the check.
                self.verify(connection, checks).await?
            } else {
                Vec::new()
            };
            let released = |(at, answer): (usize, Option<String>)| match answer {
                None if why[at] == Asked::Gone => Ok(Asked::Gone),
                None => Ok(Asked::Skipped),
                Some(answer) if answer == sql::BELOW_SAVEPOINT => Err(below_savepoint("release it")),
                Some(answer) => match answer.strip_prefix(sql::RELEASED_WHOLE) {
                    Some(id) => Ok(Asked::Found(id.to_owned())),
                    None => Err(unreadable(&answer)),
                },
            };
            answers.into_iter().enumerate().map(released).collect()
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

    #[cfg(feature = "run_once")]
    fn is_another_attempt(&self, records: &str) -> Option<String> {
        Some(sql::is_another_attempt(records))
    }

    fn failed(&self, error: DriverError) -> StoreError {
        error::of_fence_check(error)
    }

    fn takes_in_theirs(&self) -> bool {
        true
    }

    fn makes_free_rows(&self) -> bool {
        true
    }

    /// One statement.
    ///
    /// # Errors
    /// [`StoreErrorKind::Conflict`] under REPEATABLE READ or stricter, when the row was written after the snapshot,
    /// and [`StoreErrorKind::Unsupported`] below a savepoint, as for [`release`](Self::release).
    fn take<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        take: &'a Take<'a>,
    ) -> StoreFuture<'a, Result<Took<Taken>, StoreError>> {
        Box::pin(async move {
            let source = take.source;
            let values = [
                take.key.as_str().to_owned(),
                take.lease_id.simple().to_string(),
                take.owner.simple().to_string(),
                take.holder.to_owned(),
            ];
            let sql = if take.own {
                sql::take_free(&source.table, source.idle_limit)
            } else {
                sql::take(&source.table, source.idle_limit)
            };
            let mut rows = source.query(connection, &sql, values.clone()).await?;
            if take.own && rows.is_empty() {
                // Why it took nothing, unless it can now.
                let sql = sql::take(&source.table, source.idle_limit);
                rows = source.query(connection, &sql, values).await?;
            }
            let [answer] = &rows[..] else {
                return Err(unreadable(&rows.join(", ")));
            };
            taken(answer)
        })
    }

    fn commit(&self, id: &TransactionId) -> Option<String> {
        Some(sql::commit(id))
    }

    fn by_lease(&self, source: &FenceSource) -> Option<ByLease> {
        Some(ByLease {
            marks: sql::MARKS,
            mark: sql::MARK,
            check: sql::check_lease(&source.table, source.idle_limit),
        })
    }

    fn was_over(&self, error: &DriverError) -> bool {
        error.code() == Some("22P02") && error.to_string().contains(sql::OVER)
    }
}

fn taken(answer: &str) -> Result<Took<Taken>, StoreError> {
    if answer.split(' ').next() == Some(sql::TAKEN_BELOW_SAVEPOINT) {
        return Err(below_savepoint("take it"));
    }
    took(answer, |rest| {
        let mut rest = rest.splitn(3, ' ');
        Some(Taken {
            fence_token: rest.next()?.parse().ok()?,
            transaction: rest.next()?.to_owned(),
            identity: rest.next()?.to_owned(),
        })
    })
}

/// Rolled back to the savepoint, the transaction would go on without the lock.
fn below_savepoint(does: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unsupported,
        format!("a lock cannot end with a savepoint: {does} in the transaction itself, before `SAVEPOINT`"),
    )
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
