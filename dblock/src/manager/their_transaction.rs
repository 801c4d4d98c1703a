//! A lock that ends with a transaction of its caller's.

use std::time::Duration;

use super::LockManager;
use super::acquire::{Began, Caller, recorded};
use crate::Key;
use crate::LockError;
use crate::LockOptions;
use crate::engine::{Entered, Hold, STORE_TIMEOUT, TurnToTake};
use crate::fence::{self, FenceConnection, STATEMENT_TIMEOUT};
use dblock_core::Wait;
use dblock_core::machine::call::Takes;
use dblock_core::store::rules::Took;
use tracing::Instrument as _;

impl LockManager {
    /// Takes the lock for a call that runs in a transaction of its caller's.
    pub(crate) async fn hold_in(
        &self,
        key: &str,
        options: &LockOptions,
        tx: &mut dyn FenceConnection,
    ) -> Result<Hold, LockError> {
        fence::check_options(options)?;
        if options.wait == Wait::Forever {
            return Err(LockError::invalid(
                "a transaction must not wait for ever: two of them could wait for each other for good; give a wait",
            ));
        }
        let began = self.begins(options);
        let key = self.key(key)?;
        let engine = &self.shared.engine;
        let left = began.left(engine).unwrap_or(STATEMENT_TIMEOUT);
        let again = self.enter_again(&key, options, began, tx);
        let again = engine.within(Some(left.max(STATEMENT_TIMEOUT)), again).await;
        let hold = if let Some(hold) = again.unwrap_or_else(|| Err(fence::not_answered(&key)))? {
            hold
        } else {
            let source = engine.source_to_take(&key);
            let takes = match source {
                Some(source) if source.dialect.takes_in_theirs() => Takes::First,
                _ => Takes::No,
            };
            let enters = async {
                match self.enter_or_turn(&key, options, began, takes).await? {
                    Entered::Hold(hold) => Ok((hold, false)),
                    Entered::Turn(turn) => self.take_in_theirs(&key, turn, began, tx).await,
                }
            };
            let span = self.span(&key.typed(), options);
            let entered = enters.instrument(span.clone()).await;
            let (hold, is_taken) = recorded(&span, entered, |(hold, _)| hold.lease())?;
            if is_taken {
                return Ok(hold);
            }
            hold
        };
        if fence::is_kept_at_once(&hold) {
            fence::keep_at_once(&hold, tx).await?;
        }
        Ok(hold)
    }

    /// Takes the key in a transaction of the caller's; where that takes nothing, waits for a lease. Returns whether
    /// the key was taken.
    async fn take_in_theirs(
        &self,
        key: &Key,
        turn: TurnToTake,
        began: Began,
        tx: &mut dyn FenceConnection,
    ) -> Result<(Hold, bool), LockError> {
        let begin_anew = |message| fence::begin_anew(key, message);
        let engine = &self.shared.engine;
        let Some(source) = engine.source_to_take(key) else {
            return Ok((turn.for_lease(Duration::ZERO).await?, false));
        };
        let limit = self.time_to_take(began);
        let tries = self.take_in(key, source, &turn, false, tx);
        let taken = engine.within(Some(limit), tries).await;
        match taken.unwrap_or_else(|| Err(fence::not_answered(key))) {
            Ok(Took::Taken(taken)) => match turn.taken(taken.fence_token) {
                Ok(hold) => Ok((hold, true)),
                Err(_) => Err(begin_anew(
                    "the transaction has taken the key too late: roll it back and begin it anew",
                )),
            },
            Ok(Took::Locked) => Err(begin_anew(
                "the lock was acquired by another owner in this moment: roll the transaction back and begin it anew",
            )),
            Ok(nothing) => Ok((turn.for_lease(nothing.ahead()).await?, false)),
            Err(error) => Err(error),
        }
    }

    /// Enters a lock of the call chain, or one that an earlier call in this same transaction has left to it.
    async fn enter_again(
        &self,
        key: &Key,
        options: &LockOptions,
        began: Began,
        tx: &mut dyn FenceConnection,
    ) -> Result<Option<Hold>, LockError> {
        self.check(options)?;
        let engine = &self.shared.engine;
        let caller = Caller::new(self, options, began);
        if let Some(lease) = caller.held(key) {
            // The transaction may lock the row, so that the store cannot confirm. The statement in it checks the
            // lease.
            return Hold::enter_now(lease).map(Some);
        }
        let Some(left) = engine.left_in_transaction(key) else {
            return Ok(None);
        };
        let lease_id = left.lease_id;
        let limit = began.left(engine).unwrap_or(STORE_TIMEOUT);
        if !fence::is_kept_by(engine, key, left, limit, tx).await? {
            return Ok(None);
        }
        let call = caller.call(options.wait, None);
        // It fails when the transaction has ended without its driver's knowledge. The next statement in it
        // fails then.
        Ok(engine.enter_again(key, lease_id, call).await.ok())
    }
}
