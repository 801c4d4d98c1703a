//! A caller's turn to take a key in its own transaction, without a lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::out::Turn;
use uuid::Uuid;

use super::acquire::{Asked, asked_or_refusal};
use super::cells::{Cell, Given, Machine};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use crate::engine::Call;
use crate::meter::AcquireOutcome;
use crate::{Key, LockError};

/// What an acquire came to.
#[cfg_attr(
    not(feature = "sql"),
    allow(dead_code, reason = "only transactions take keys")
)]
pub(crate) enum Entered {
    Hold(Hold),
    /// Only for a caller that [takes](Call::takes).
    Turn(TurnToTake),
}

impl EngineHandle {
    /// As [`acquire`](Self::acquire), for a caller whose transaction can take the key itself: where nobody holds it,
    /// the caller gets its turn to try.
    #[cfg_attr(
        not(feature = "sql"),
        allow(dead_code, reason = "only transactions take keys")
    )]
    pub(crate) fn acquire_or_turn(
        &self,
        key: &Key,
        call: Arc<Call>,
    ) -> impl Future<Output = Result<Entered, LockError>> {
        let mut asked = self.ask_alone(key, call, Machine::acquire);
        async move { asked_or_refusal(&mut asked)?.entered().await }
    }
}

/// A caller's turn to take a key in its transaction. Until it is over, no other caller of this process tries.
/// Dropping it lets the next one go on.
pub(crate) struct TurnToTake {
    engine: EngineHandle,
    cell: Arc<Cell>,
    turn: Turn,
    call: Arc<Call>,
    /// The caller has not gone on otherwise.
    open: bool,
}

#[cfg_attr(
    not(feature = "sql"),
    allow(dead_code, reason = "only transactions take keys")
)]
impl TurnToTake {
    pub(super) fn new(engine: EngineHandle, of_key: Arc<Cell>, turn: Turn, call: Arc<Call>) -> Self {
        Self {
            engine,
            cell: of_key,
            turn,
            call,
            open: true,
        }
    }

    /// The lease that the transaction writes.
    pub(crate) fn lease_id(&self) -> Uuid {
        self.turn.lease_id
    }

    pub(crate) fn call(&self) -> &Call {
        &self.call
    }

    /// Another caller of this process waits for the key.
    pub(crate) fn others_wait(&self) -> bool {
        let waits = self
            .engine
            .shared
            .step(&self.cell, |machine, _| machine.has_callers());
        waits.unwrap_or_default()
    }

    fn end(&self) {
        let number = self.turn.number;
        self.engine
            .shared
            .step(&self.cell, |machine, env| machine.end_turn(env, number));
    }

    /// Waits for a lease, in the caller's own place. No caller takes the key before `no_turns_for` has passed.
    pub(crate) async fn for_lease(mut self, no_turns_for: Duration) -> Result<Hold, LockError> {
        self.open = false;
        self.engine
            .come_back(&self.cell, self.turn, &self.call, no_turns_for)
            .await
    }

    /// The transaction has taken the key with this token. Gives the turn back when it was over before: then the
    /// transaction must be rolled back.
    pub(crate) fn taken(mut self, fence_token: i64) -> Result<Hold, Self> {
        let (turn, call) = (self.turn, Arc::clone(&self.call));
        let taken = self.engine.shared.step(&self.cell, |machine, env| {
            machine.taken(env, turn.number, turn.lease_id, fence_token, call)
        });
        let Some(ownership) = taken.flatten() else {
            return Err(self);
        };
        self.open = false;
        let shared = &self.engine.shared;
        shared
            .report(ownership.since)
            .granted(self.call.since, &ownership);
        let lease = Lease::new(self.engine.clone(), Arc::clone(&self.cell), ownership);
        Ok(Hold::granted(lease))
    }
}

impl Drop for TurnToTake {
    fn drop(&mut self) {
        if self.open {
            let waited = self.engine.now().since(self.call.since);
            let site = self.engine.site(self.call.options.function);
            site.acquire_ended(AcquireOutcome::Dropped, waited);
            self.end();
        }
    }
}

impl Asked<'_> {
    /// What the acquire came to.
    async fn entered(&mut self) -> Result<Entered, LockError> {
        Ok(match self.given().await? {
            Given::Lock(ownership) => Entered::Hold(self.held(ownership)),
            Given::Turn(turn) => Entered::Turn(self.to_take(turn)),
        })
    }

    fn to_take(&self, turn: Turn) -> TurnToTake {
        let (of_key, call) = (Arc::clone(&self.of_key), Arc::clone(&self.call));
        TurnToTake::new(self.engine.clone(), of_key, turn, call)
    }
}
