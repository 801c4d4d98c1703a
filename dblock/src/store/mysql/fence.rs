//! The fence check in a user's transaction.

use std::time::Duration;

use dblock_core::store::rules::Took;

use super::{error, sql};
use crate::store::fence::take::took;
use crate::store::fence::{
    Answers, Asked, Database, Dialect, DriverError, FenceCheck, FenceConnection, FenceSource, ReadsRelease,
    Take, Taken, TransactionId, time_left, unreadable,
};
use crate::store::{StoreError, StoreErrorKind, StoreFuture};

/// After its end a transaction goes on here as single statements, or as another transaction. A savepoint ends
/// with it, however it ends.
const MARK: &str = "SAVEPOINT dblock";
const MARK_IS_THERE: &str = "RELEASE SAVEPOINT dblock";

#[derive(Debug)]
pub(super) struct MySql;

impl Dialect for MySql {
    fn database(&self) -> Database {
        Database::MySql
    }

    /// Locks the rows of the keys for sharing.
    ///
    /// Each key has a statement of its own: for several the server would choose a plan, which on a small table
    /// may be a scan, and a scan locks other rows too.
    fn verify<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        checks: &'a [FenceCheck<'a>],
    ) -> Answers<'a, (Duration, TransactionId)> {
        Box::pin(async move {
            let mut left = Vec::with_capacity(checks.len());
            for check in checks {
                left.push(lock(connection, check, sql::FOR_SHARE).await?);
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
                released.push(release(connection, check).await?);
            }
            Ok(released)
        })
    }

    /// The release is found where no other transaction has the row locked.
    ///
    /// A locking read, because a plain one would fix the transaction's snapshot, from before the lock that it
    /// waits for next, and would see under READ UNCOMMITTED what another transaction has not committed.
    ///
    /// When the release is taken back, this transaction keeps the row locked from here on.
    fn reads_release<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        check: &'a FenceCheck<'a>,
    ) -> StoreFuture<'a, Result<ReadsRelease, StoreError>> {
        Box::pin(async move {
            let row = check
                .row(connection, &sql::reads_release(&check.source.table))
                .await?;
            Ok(match row.as_deref() {
                None => ReadsRelease::NotWritten,
                Some("0") => ReadsRelease::Written,
                Some(_) => ReadsRelease::TakenBack,
            })
        })
    }

    /// One message of several statements, as sqlx sends them.
    fn take<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        take: &'a Take<'a>,
    ) -> StoreFuture<'a, Result<Took<Taken>, StoreError>> {
        Box::pin(async move {
            let source = take.source;
            let session = source.identity.known();
            let values = [
                take.key.as_str().to_owned(),
                take.lease_id.simple().to_string(),
                take.owner.simple().to_string(),
                take.holder.to_owned(),
                session.clone().unwrap_or_else(|| NO_SESSION.to_owned()),
            ];
            let rows = source
                .query(connection, &sql::take(&source.table), values)
                .await?;
            let [answer] = &rows[..] else {
                return Err(unreadable(&rows.join(", ")));
            };
            taken(answer, session)
        })
    }

    /// The session that is known now, if it is on the transaction's server.
    fn identity<'a>(
        &'a self,
        connection: &'a mut dyn FenceConnection,
        source: &'a FenceSource,
        _: String,
    ) -> StoreFuture<'a, Result<String, StoreError>> {
        Box::pin(async move {
            let Some(session) = source.identity.known() else {
                return Ok(ELSEWHERE.to_owned());
            };
            let rows = source.query(connection, sql::IS_HERE, [session.clone()]).await?;
            let is_here = rows.first().is_some_and(|answer| answer == "1");
            Ok(if is_here { session } else { ELSEWHERE.to_owned() })
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

    fn marks_with(&self) -> Option<&'static str> {
        Some(MARK)
    }

    fn commit(&self, _: &TransactionId) -> Option<String> {
        Some(format!("{MARK_IS_THERE}; COMMIT AND CHAIN"))
    }

    /// There is no such savepoint any more.
    fn was_over(&self, error: &DriverError) -> bool {
        error.code() == Some("1305")
    }

    /// A statement that waits for a table has committed the transaction. Where the server has rolled it back, there is no
    /// savepoint either.
    fn asks_after(&self) -> Option<&'static str> {
        Some(MARK_IS_THERE)
    }
}

/// The identity where no session of the store's is known to be.
const ELSEWHERE: &str = "";

/// The name of no session.
const NO_SESSION: &str = "dblock";

/// Reads the answer of [`sql::take`], which was asked for this session: the token, and whether that session is on
/// the transaction's server.
fn taken(answer: &str, session: Option<String>) -> Result<Took<Taken>, StoreError> {
    took(answer, |rest| {
        let (token, is_here) = rest.split_once(' ')?;
        let session = session.filter(|_| is_here == "1");
        Some(Taken {
            fence_token: token.parse().ok()?,
            transaction: TransactionId::new(),
            identity: session.unwrap_or_else(|| ELSEWHERE.to_owned()),
        })
    })
}

async fn release(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
) -> Result<Asked<TransactionId>, StoreError> {
    match lock(connection, check, "FOR UPDATE").await? {
        Asked::Found(_) => {}
        Asked::Gone => return Ok(Asked::Gone),
        Asked::Skipped => return Ok(Asked::Skipped),
    }
    let sql = sql::release_in(&check.source.table);
    let written = check.source.writes(connection, &sql, check.values()).await?;
    Ok(if written {
        Asked::Found(TransactionId::new())
    } else {
        Asked::Gone
    })
}

/// The time left of the lease, whose row is locked by `how` from here on.
async fn lock(
    connection: &mut dyn FenceConnection,
    check: &FenceCheck<'_>,
    how: &str,
) -> Result<Asked<(Duration, TransactionId)>, StoreError> {
    let row = check
        .row(connection, &sql::verify(&check.source.table, how))
        .await?;
    match row.as_deref() {
        None => Ok(Asked::Skipped),
        Some(sql::GONE) => Ok(Asked::Gone),
        Some(sql::STALE_SNAPSHOT) => Err(StoreError::new(
            StoreErrorKind::Conflict,
            "the transaction's snapshot is older than the lock: roll it back and begin it anew inside the lock, \
             before anything is read",
        )),
        Some(left) => Ok(Asked::Found((time_left(left)?, TransactionId::new()))),
    }
}
