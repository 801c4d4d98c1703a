//! A caller's turn to take a key in its own transaction, without a lease.

use std::sync::Arc;
use std::time::Duration;

use dblock_core::machine::call::Takes;
use dblock_core::machine::out::Turn;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::asked::Asked;
use super::cells::{Cell, Given};
use super::handle::EngineHandle;
use super::hold::Hold;
use super::lease::Lease;
use crate::LockError;
use crate::engine::{Call, Time};
use crate::meter::{AcquireOutcome, Site};

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

/// A caller's turn to take a key in its transaction. Until it is over, no other caller of this process tries.
/// Dropping it lets the next one go on.
pub(crate) struct TurnToTake {
    engine: EngineHandle,
    cell: Arc<Cell>,
    turn: Turn,
    call: Arc<Call>,
    since: Time,
    site: Site,
    /// The caller has not gone on otherwise.
    open: bool,
}

#[cfg_attr(
    not(feature = "sql"),
    allow(dead_code, reason = "only transactions take keys")
)]
impl TurnToTake {
    pub(super) fn new(
        engine: EngineHandle,
        of_key: Arc<Cell>,
        turn: Turn,
        call: Arc<Call>,
        since: Time,
        site: Site,
    ) -> Self {
        Self {
            engine,
            cell: of_key,
            turn,
            call,
            since,
            site,
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
        let mut call = (*self.call).clone();
        call.takes = Takes::No;
        let call = Arc::new(call);
        let (to, answer) = oneshot::channel();
        let (number, since, asks) = (self.turn.number, self.since, Arc::clone(&call));
        self.open = false;
        if let Some(refused) = self.engine.refuses(&call, &self.site, self.cell.key()) {
            self.end();
            return Err(refused);
        }
        let engine = self.engine.clone();
        let came = engine.shared.step(&self.cell, |machine, env| {
            machine.come_back(env, number, asks, since, to, no_turns_for);
        });
        if came.is_none() {
            // Nobody wanted the key any more, so it was forgotten.
            return engine.acquire(&self.cell.key().clone(), call).await;
        }
        let mut asked = Asked::new(&engine, Arc::clone(&self.cell), Some(number), answer, call, since);
        asked.hold().await
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
        self.engine.shared.report().granted(self.since, &ownership);
        let lease = Lease::new(Arc::clone(&self.engine.shared), Arc::clone(&self.cell), ownership);
        Ok(Hold::granted(lease, self.engine.clone()))
    }
}

impl Drop for TurnToTake {
    fn drop(&mut self) {
        if self.open {
            let waited = self.engine.now().since(self.since);
            self.site.acquire_ended(AcquireOutcome::Dropped, waited);
            self.end();
        }
    }
}

impl Asked<'_> {
    /// The lock, with a lease.
    pub(super) async fn hold(&mut self) -> Result<Hold, LockError> {
        match self.given().await? {
            Given::Lock(ownership) => Ok(self.held(ownership)),
            // Only a call that takes gets one.
            Given::Turn(turn) => Box::pin(self.to_take(turn).for_lease(Duration::ZERO)).await,
        }
    }

    /// What the acquire came to.
    pub(super) async fn entered(&mut self) -> Result<Entered, LockError> {
        Ok(match self.given().await? {
            Given::Lock(ownership) => Entered::Hold(self.held(ownership)),
            Given::Turn(turn) => Entered::Turn(self.to_take(turn)),
        })
    }

    fn to_take(&self, turn: Turn) -> TurnToTake {
        let (of_key, call) = (Arc::clone(&self.of_key), Arc::clone(&self.call));
        let site = self.engine.site(call.options.function);
        TurnToTake::new(self.engine.clone(), of_key, turn, call, self.since, site)
    }
}
