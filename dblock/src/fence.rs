//! Statements of dblock in a transaction of yours, over any driver.
//!
//! [`verify_in`](crate::LockGuard::verify_in) asks in your transaction whether the lease is still held, and
//! [`release_in`](crate::LockGuard::release_in) writes its end there. Pass the transaction like this:
//!
//! | driver | what to pass |
//! |---|---|
//! | sqlx | `&mut tx`: a [`sqlx::Transaction`] on PostgreSQL, MySQL, MariaDB or SQLite |
//! | tokio-postgres, deadpool-postgres | `&mut fence(&tx)` of the crate `dblock-tokio-postgres` |
//! | SeaORM | `&mut fence(&tx)` of `dblock-sea-orm`, on PostgreSQL, MySQL, MariaDB or SQLite |
//! | diesel-async | `&mut fence(tx)` of `dblock-diesel-async`, on PostgreSQL, MySQL or MariaDB |
//! | any other | a type of yours that implements [`FenceConnection`] |

mod by_lease;
mod keep;
mod which_transaction;

use std::time::{Duration, Instant};

use futures_util::future::try_join_all;

pub(crate) use self::by_lease::{InTransaction, Mark, by_lease, commit_by_lease};
#[cfg(feature = "run_once")]
pub(crate) use self::keep::complete;
pub(crate) use self::keep::{
    Ends, STATEMENT_TIMEOUT, begin_anew, check_options, commit, is_kept_at_once, keep, keep_at_once,
    keep_at_the_end, marks_with, not_answered,
};
pub(crate) use self::which_transaction::committed_row;
pub(crate) use self::which_transaction::is_kept_by;
use self::which_transaction::{marked_transaction, same_transaction};
use crate::engine::{EngineHandle, Lease, STORE_TIMEOUT};
pub(crate) use crate::store::fence::begin_failed;
#[doc(hidden)]
pub use crate::store::fence::take_on;
use crate::store::fence::{Answers, Asked, Dialect, FenceCheck, TransactionId};
pub use crate::store::fence::{Database, DriverError, FenceConnection, FenceStatement};
use crate::store::{StoreError, StoreErrorKind};
use crate::{Key, LockError, LostReason};

/// Runs the check for leases of one engine. Returns the transaction's id, which is empty without a lease that is
/// checked by its row.
pub(crate) async fn verify<'l>(
    leases: impl IntoIterator<Item = &'l Lease>,
    transaction: &mut dyn FenceConnection,
) -> Result<TransactionId, LockError> {
    let (kept, leases): (Vec<_>, Vec<_>) = leases
        .into_iter()
        .partition(|lease| lease.is_kept_in_transaction());
    for lease in kept {
        same_transaction(lease, transaction).await?;
    }
    let (checked_last, leases): (Vec<_>, Vec<_>) = leases
        .into_iter()
        .partition(|lease| lease.transaction_mark() != 0);
    for lease in checked_last {
        marked_transaction(lease, transaction).await?;
    }
    let mut id = TransactionId::new();
    let found = |lease: &Lease, (_, transaction)| {
        id = transaction;
        lease.check()
    };
    ask(leases, transaction, Dialect::verify, found).await?;
    Ok(id)
}

/// [`Dialect::verify`] or [`Dialect::release`].
type Asks<T> = for<'a> fn(
    &'a (dyn Dialect + 'static),
    &'a mut dyn FenceConnection,
    &'a [FenceCheck<'a>],
) -> Answers<'a, T>;

/// Asks for leases until all of them are `found`; again while others have their rows locked. Nobody waits in the
/// database, and a lease that is over is told at once.
async fn ask<T>(
    mut leases: Vec<&Lease>,
    transaction: &mut dyn FenceConnection,
    asks: Asks<T>,
    mut found: impl FnMut(&Lease, T) -> Result<(), LockError>,
) -> Result<(), LockError> {
    let mut checks = prepare(&leases).await?;
    let Some(dialect) = dialect_of(&checks, transaction)? else {
        return Ok(());
    };
    let mut again = Again::new(leases[0].engine());
    let all = leases.clone();
    loop {
        let answers = asks(dialect, transaction, &checks).await;
        let answers = answers.map_err(|error| failed(leases[0], error))?;
        let mut skipped = Vec::new();
        for (lease, answer) in leases.into_iter().zip(answers) {
            match answer {
                Asked::Found(answer) => found(lease, answer)?,
                Asked::Gone => return Err(refused(lease).await),
                Asked::Skipped => skipped.push(lease),
            }
        }
        let Some(first) = skipped.first() else {
            // One that was found first may be over by now.
            return all.into_iter().try_for_each(Lease::check);
        };
        again.after_a_pause(first.key()).await?;
        for lease in &skipped {
            lease.check()?;
            if is_held_elsewhere(lease, again.left()).await == Some(false) {
                return Err(refused(lease).await);
            }
        }
        checks.retain(|check| skipped.iter().any(|lease| lease.id() == check.lease_id));
        leases = skipped;
    }
}

/// When a statement is asked again that has skipped a row: for a while, and not often.
struct Again<'e> {
    engine: &'e EngineHandle,
    since: Instant,
    pause: Duration,
}

impl<'e> Again<'e> {
    fn new(engine: &'e EngineHandle) -> Self {
        let (since, pause) = (Instant::now(), Duration::from_millis(1));
        Self { engine, since, pause }
    }

    fn left(&self) -> Duration {
        STATEMENT_TIMEOUT.saturating_sub(self.since.elapsed())
    }

    async fn after_a_pause(&mut self, key: &Key) -> Result<(), LockError> {
        if self.left().is_zero() {
            return Err(begin_anew(
                key,
                "others keep its row locked, unless the transaction is on another server than the lock: roll it back and \
                 begin it anew",
            ));
        }
        self.engine.pause(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_millis(32));
        Ok(())
    }
}

/// From here on the locks leave this process through the store only, and the rows name the owners.
async fn prepare<'a>(leases: &[&'a Lease]) -> Result<Vec<FenceCheck<'a>>, LockError> {
    let prepare = async |lease: &'a Lease| {
        lease.check()?;
        let check = check_of(lease)?;
        // Where a transaction keeps every other writer out, the statement itself writes the token.
        lease.pin(!check.source.dialect.has_one_writer()).await?;
        Ok::<_, LockError>(check)
    };
    let checks = try_join_all(leases.iter().map(|lease| prepare(lease))).await?;
    if let [first, others @ ..] = &checks[..]
        && others
            .iter()
            .any(|other| !std::ptr::eq(other.source, first.source))
    {
        let message = "these locks are on several shards, and a transaction is on one: check or release in it only locks \
                       of its own shard";
        return Err(failed(
            leases[0],
            StoreError::new(StoreErrorKind::Unsupported, message),
        ));
    }
    Ok(checks)
}

/// What the database of the leases and of the transaction says; `None` without a lease.
fn dialect_of(
    checks: &[FenceCheck<'_>],
    transaction: &dyn FenceConnection,
) -> Result<Option<&'static dyn Dialect>, LockError> {
    let dialect = |check: &FenceCheck<'_>| {
        let dialect = check.source.dialect_in(transaction);
        dialect.map_err(|error| LockError::store_of(check.key, error))
    };
    checks.first().map(dialect).transpose()
}

fn check_of(lease: &Lease) -> Result<FenceCheck<'_>, LockError> {
    let source = lease.fence_source().ok_or_else(|| {
        let error = StoreError::new(
            StoreErrorKind::Unsupported,
            "this store cannot check a fence token in a transaction, nor can a `ShardedStore` for a key that is moving; \
             compare `fence_token` in the resource instead",
        );
        failed(lease, error)
    })?;
    Ok(FenceCheck {
        source,
        key: lease.key(),
        lease_id: lease.id(),
        fence_token: lease.fence_token(),
    })
}

pub(crate) fn failed(lease: &Lease, error: StoreError) -> LockError {
    LockError::store_of(lease.key(), error)
}

/// The reason why the transaction does not see the lease.
async fn refused(lease: &Lease) -> LockError {
    // When the store cannot be asked, the transaction's answer stands.
    if is_held_elsewhere(lease, STORE_TIMEOUT).await == Some(true) {
        let error = StoreError::new(
            StoreErrorKind::Unsupported,
            "the transaction does not see this lease, but the lock's own database does: the transaction is on \
             another database, file or schema, or its snapshot is older than the lease; begin it on the lock's \
             database, inside the lock",
        );
        return failed(lease, error);
    }
    lease.end_as_gone();
    lease.lost(lease.lost_reason().unwrap_or(LostReason::Gone))
}

/// Whether the manager's own connections see the lease that the transaction did not see, if they can be asked. A plain
/// read: the transaction may have locked the row.
async fn is_held_elsewhere(lease: &Lease, limit: Duration) -> Option<bool> {
    let row = committed_row(lease.engine(), lease.key(), limit).await.ok()?;
    Some(row.is_some_and(|row| row.lease_id == lease.id() && row.is_held()))
}
