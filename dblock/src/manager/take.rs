//! A transaction takes a free key itself.

use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join;
use sqlx::{Pool, Transaction};
use tokio::time::timeout;

use super::LockManager;
use super::acquire::Began;
use super::transaction::{Opened, rolled_back};
use crate::Key;
use crate::LockError;
use crate::engine::{Hold, STORE_TIMEOUT, TurnToTake};
use crate::fence::{self, Ends, FenceConnection, STATEMENT_TIMEOUT};
use crate::store::fence::{FenceSource, Marking, Take, Taken};
use crate::store::{StoreError, StoreErrorKind};
use crate::transaction::begin;
use dblock_core::machine::call::Takes;
use dblock_core::store::rules::Took;

/// How long a caller keeps others of its process waiting while it waits for a connection to take the key with. Then it
/// waits for a lease.
pub(super) const CONNECTING: Duration = Duration::from_millis(50);

impl LockManager {
    /// Whether a transaction of our own takes the key itself.
    pub(super) fn takes(&self, key: &Key) -> Takes {
        match self.shared.engine.source_to_take(key) {
            None => Takes::No,
            Some(source) if source.dialect.by_lease(source).is_some() => Takes::Alone,
            Some(_) => Takes::First,
        }
    }

    /// How long a take may last: it counts against `wait`.
    pub(super) fn time_to_take(&self, began: Began) -> Duration {
        let left = began.left(&self.shared.engine).unwrap_or(STATEMENT_TIMEOUT);
        left.clamp(CONNECTING, STATEMENT_TIMEOUT)
    }

    /// Takes the key in a transaction of our own; where that takes nothing, waits for a lease.
    pub(super) async fn take<DB>(
        &self,
        key: &Key,
        turn: TurnToTake,
        began: Began,
        pool: &Pool<DB>,
    ) -> Result<Result<Opened<DB>, Hold>, LockError>
    where
        DB: sqlx::Database,
        Transaction<'static, DB>: FenceConnection,
    {
        let Some(source) = self.shared.engine.source_to_take(key) else {
            return turn.for_lease(Duration::ZERO).await.map(Err);
        };
        let begins = async {
            let mut begins = pin!(begin(pool));
            let mut left = self.time_to_take(began);
            loop {
                match timeout(CONNECTING, &mut begins).await {
                    Ok(opened) => break opened.map_err(Some),
                    Err(_) if turn.others_wait() || left <= CONNECTING => break Err(None),
                    Err(_) => left -= CONNECTING,
                }
            }
        };
        let makes_row = async {
            if source.new_keys.load(Ordering::Relaxed) {
                // Where this fails, the take finds no row.
                let makes = self.shared.engine.make_free_row(key);
                let made = timeout(self.time_to_take(began), makes).await;
                source
                    .new_keys
                    .store(matches!(made, Ok(Ok(true))), Ordering::Relaxed);
            }
            Ok(())
        };
        let (mut transaction, ()) = match try_join(begins, makes_row).await {
            Ok(opened) => opened,
            Err(None) if began.left(&self.shared.engine).is_some_and(|left| left.is_zero()) => {
                let message = "the pool had no free connection, or the server did not answer BEGIN, in time";
                let error = io::Error::new(io::ErrorKind::TimedOut, message);
                return Err(LockError::store_of(key, fence::begin_failed(error.into())));
            }
            Err(None) => return turn.for_lease(Duration::ZERO).await.map(Err),
            Err(Some(error)) => return Err(LockError::store_of(key, fence::begin_failed(error))),
        };
        let mut marked = Marking::new(&mut transaction, source.dialect.marks_with());
        let asks = self.take_in(key, source, &turn, true, &mut marked);
        let Ok(tried) = timeout(self.time_to_take(began), asks).await else {
            // Its rollback is sent when the server answers.
            drop(transaction);
            return turn.for_lease(Duration::ZERO).await.map(Err);
        };
        let (turn, no_turns_for) = match tried {
            Ok(Took::Taken(taken)) => match turn.taken(taken.fence_token) {
                Ok(hold) => {
                    return Ok(Ok(Opened {
                        transaction,
                        ends: Ends::Taken(taken.transaction),
                        hold,
                    }));
                }
                Err(late) => (late, Duration::ZERO),
            },
            Ok(nothing) => (turn, nothing.ahead()),
            // Where the pool is on another server for good, a lease finds that out too.
            Err(error) if error.is_retryable() || is_elsewhere(&error) => (turn, Duration::ZERO),
            Err(error) => return Err(error),
        };
        // Nothing waits with a transaction open.
        rolled_back(key, transaction, self.time_to_take(began)).await;
        turn.for_lease(no_turns_for).await.map(Err)
    }

    /// Takes the key in a transaction, of our `own` or of the caller's.
    pub(super) async fn take_in(
        &self,
        key: &Key,
        source: &FenceSource,
        turn: &TurnToTake,
        own: bool,
        transaction: &mut dyn FenceConnection,
    ) -> Result<Took<Taken>, LockError> {
        let failed = |error| LockError::store_of(key, error);
        let dialect = source.dialect_in(transaction).map_err(failed)?;
        let take = Take {
            source,
            key,
            lease_id: turn.lease_id(),
            owner: turn.call().owner,
            holder: &turn.call().holder,
            own,
        };
        let mut took = dialect.take(transaction, &take).await.map_err(failed)?;
        if matches!(took, Took::Absent) && dialect.makes_free_rows() {
            source.new_keys.store(true, Ordering::Relaxed);
            self.shared.engine.make_free_row(key).await?;
            took = dialect.take(transaction, &take).await.map_err(failed)?;
        }
        if let Took::Taken(taken) = &mut took {
            let identity = std::mem::take(&mut taken.identity);
            self.check_identity(key, source, transaction, identity).await?;
        }
        Ok(took)
    }

    /// A lease in another table would not have kept the transaction from its take.
    async fn check_identity(
        &self,
        key: &Key,
        source: &FenceSource,
        transaction: &mut dyn FenceConnection,
        mut identity: String,
    ) -> Result<(), LockError> {
        let failed = |error| LockError::store_of(key, error);
        let mut known = source.identity.is(&identity);
        // The server may have been restarted. Where the identity is a session of the store's, that may have ended, and
        // so may the next one: only of one that was read twice it is certain.
        let (mut reads, mut former) = (0..5, None);
        while known != Some(true) && reads.next().is_some() {
            fence::committed_row(&self.shared.engine, key, STORE_TIMEOUT).await?;
            let anew = source.dialect.identity(transaction, source, identity);
            identity = anew.await.map_err(failed)?;
            known = source.identity.is(&identity);
            let read = source.identity.known();
            if known == Some(false) && former == read {
                break;
            }
            // Not certain yet.
            known = known.filter(|is| *is);
            former = read;
        }
        let (kind, message) = match known {
            // Behind a pooler that was found just now nobody knows which server the store's own sessions are on.
            Some(true) if source.takes() => return Ok(()),
            Some(false) => (
                StoreErrorKind::Unsupported,
                "the transaction is on another server, database or schema than the lock: roll it back, and begin it on the \
                 lock's own, or point the manager there",
            ),
            _ => (
                StoreErrorKind::Conflict,
                "the lock's own database has just been connected anew: roll the transaction back and begin it anew",
            ),
        };
        Err(LockError::store_of(key, StoreError::new(kind, message)))
    }
}

/// The store's own session may be on a server that is no longer the primary: only a write shows that.
fn is_elsewhere(error: &LockError) -> bool {
    matches!(error, LockError::Store { source, .. } if source.kind() == StoreErrorKind::Unsupported)
}
