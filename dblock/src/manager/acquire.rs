//! How a call acquires: it re-enters what its chain holds, and asks the engine for the rest.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::task::coop::consume_budget;
use tracing::field::{self, Empty};
use tracing::{Instrument as _, Span};
use uuid::Uuid;

use super::LockManager;
use crate::Key;
use crate::LockError;
use crate::LockOptions;
use crate::chain::Link;
#[cfg(feature = "sql")]
use crate::engine::Entered;
use crate::engine::{Begin, Call, EngineHandle, Hold, Lease, Time};
use crate::meter::AcquireOutcome;
use crate::store::{StoreError, StoreErrorKind};
use dblock_core::Wait;
#[cfg(feature = "sql")]
use dblock_core::machine::call::Takes;

/// When a call began, and when its `wait` is over. Everything that the call waits for counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Began {
    since: Time,
    deadline: Option<Time>,
}

impl Began {
    /// What is left of `wait`; `None` for a call that waits for ever.
    pub(crate) fn left(&self, engine: &EngineHandle) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(engine.now()))
    }

    pub(crate) fn waited(&self, engine: &EngineHandle) -> Duration {
        engine.now().since(self.since)
    }
}

impl LockManager {
    /// A call with these options begins now.
    pub(crate) fn begins(&self, options: &LockOptions) -> Began {
        let since = self.shared.engine.now();
        Began {
            since,
            deadline: EngineHandle::deadline(since, options.wait),
        }
    }

    /// Re-enters the lease that the call chain has on the key, or acquires the lock. One span covers both.
    pub(crate) fn hold(
        &self,
        key: &Key,
        options: &LockOptions,
    ) -> impl Future<Output = Result<Hold, LockError>> {
        self.hold_and_begin(key, options, self.begins(options), None)
    }

    /// As [`hold`](Self::hold), and an acquire that the store grants also makes the change of `begin`.
    /// [`Hold::has_begun`] says whether it was made.
    pub(crate) async fn hold_and_begin(
        &self,
        key: &Key,
        options: &LockOptions,
        since: Began,
        begin: Option<Box<Begin>>,
    ) -> Result<Hold, LockError> {
        self.check(options)?;
        let span = self.span(&key.typed(), options);
        let result = self
            .enter(key, options, since, begin)
            .instrument(span.clone())
            .await;
        recorded(&span, result, Hold::lease)
    }

    /// As [`hold`](Self::hold), for a call with a transaction that can take the key itself: where nobody holds it,
    /// the call gets its turn to try.
    #[cfg(feature = "sql")]
    pub(super) async fn enter_or_turn(
        &self,
        key: &Key,
        options: &LockOptions,
        since: Began,
        takes: Takes,
    ) -> Result<Entered, LockError> {
        let caller = Caller::new(self, options, since);
        if let Some(lease) = caller.held(key) {
            return caller.reenter(lease).await.map(Entered::Hold);
        }
        caller.check_wait(key)?;
        let mut call = caller.new_call(options.wait, None);
        call.takes = takes;
        // The call may have waited for its pool before. It queues from now on.
        call.since = caller.engine.now();
        let entered = caller.engine.acquire_or_turn(key, Arc::new(call)).await;
        entered.map_err(|error| error.after(caller.waited()))
    }

    /// Refuses options that no lock can have, and those that this store cannot keep.
    pub(crate) fn check(&self, options: &LockOptions) -> Result<(), LockError> {
        options.check()?;
        let (ttl, can) = (options.ttl, &self.shared.capabilities);
        if ttl < can.shortest_ttl {
            return Err(LockError::invalid(format!(
                "ttl is {ttl:?}; the shortest lease of {} is {:?}",
                can.name, can.shortest_ttl
            )));
        }
        if options.limit.is_some() && !can.shares {
            let message = format!("{} has no shared or limited locks", can.name);
            return Err(LockError::store(StoreError::new(
                StoreErrorKind::Unsupported,
                message,
            )));
        }
        Ok(())
    }

    /// The span of an acquire.
    pub(super) fn span(&self, key: &impl Display, options: &LockOptions) -> Span {
        tracing::debug_span!("acquire_lock", %key, owner = Empty, fence_token = Empty,
            "code.function.name" = options.function, "db.system.name" = self.shared.capabilities.name,
            "error.type" = Empty, "otel.status_code" = Empty)
    }

    pub(super) async fn enter(
        &self,
        key: &Key,
        options: &LockOptions,
        since: Began,
        begin: Option<Box<Begin>>,
    ) -> Result<Hold, LockError> {
        let caller = Caller::new(self, options, since);
        if let Some(lease) = caller.held(key) {
            return caller.reenter(lease).await;
        }
        caller.check_wait(key)?;
        let call = caller.call(options.wait, begin.map(|begin| *begin));
        if let Some(hold) = caller.engine.join_quietly(key, &call) {
            // Nothing else here lets other tasks of the thread run.
            consume_budget().await;
            return Ok(hold);
        }
        let acquired = caller.engine.acquire(key, call).await;
        // Its timeout began before the engine was asked.
        acquired.map_err(|error| error.after(caller.waited()))
    }

    /// As [`hold`](Self::hold), by the ticket with this lease, whose ttl limits the wait for the store.
    pub(crate) async fn hold_ticket(
        &self,
        key: &Key,
        ticket: Uuid,
        ttl: Duration,
    ) -> Result<Hold, LockError> {
        let options = LockOptions::new().wait(ttl);
        let caller = Caller::new(self, &options, self.begins(&options));
        let span = self.span(&key.typed(), &options);
        let call = caller.call(options.wait, None);
        let adopted = caller
            .engine
            .adopt(key, ticket, call)
            .instrument(span.clone())
            .await;
        recorded(&span, adopted, Hold::lease)
    }

    /// As [`hold`](Self::hold), for several keys: takes all of them or none. The keys and the holds are sorted.
    pub(crate) async fn hold_all(&self, keys: &[Key], options: &LockOptions) -> Result<Vec<Hold>, LockError> {
        self.check(options)?;
        if options.hold_min.is_some() {
            return Err(LockError::invalid(
                "hold_min is refused with several keys: a key that is given back because another one is busy would \
                 stay busy for that long; take the key that needs it by itself",
            ));
        }
        if options.limit.is_some() {
            return Err(LockError::invalid(
                "a shared or limited lock is refused with several keys; take each key by itself",
            ));
        }
        let span = self.span(&names(keys), options);
        let result = self.enter_all(keys, options).instrument(span.clone()).await;
        // Each key has a hold, and a token of its own that its events show.
        record(&span, result.as_ref().map(|holds| holds[0].lease()));
        result
    }

    async fn enter_all(&self, keys: &[Key], options: &LockOptions) -> Result<Vec<Hold>, LockError> {
        let caller = Caller::new(self, options, self.begins(options));
        let (mut held, mut missing) = (Vec::new(), Vec::new());
        for key in keys {
            match caller.held(key) {
                Some(lease) => held.push(caller.reenter(lease)),
                None => missing.push(key),
            }
        }
        if let Some(key) = missing.first() {
            caller.check_wait(key)?;
        }
        let mut holds = try_join_all(held).await?;
        holds.extend(caller.acquire_all(&missing).await?);
        holds.sort_by(|one, other| one.lease().key().cmp(other.lease().key()));
        Ok(holds)
    }

    /// The text of the `holder` column: for people, and cut to fit.
    pub(crate) fn holder(&self, function: Option<&'static str>) -> Arc<str> {
        let Some(function) = function else {
            return Arc::clone(&self.shared.process);
        };
        let mut text = format!("{} {function}", self.shared.process);
        text.truncate(text.floor_char_boundary(Key::MAX_BYTES));
        text.into()
    }
}

/// The keys, as a span shows them.
fn names(keys: &[Key]) -> String {
    keys.iter().map(Key::typed).collect::<Vec<_>>().join(", ")
}

/// Writes the result of the acquire of one key into the span. `lease` is that of what was acquired.
pub(super) fn recorded<T>(
    span: &Span,
    result: Result<T, LockError>,
    lease: impl Fn(&T) -> &Lease,
) -> Result<T, LockError> {
    if let Ok(acquired) = &result {
        span.record("fence_token", lease(acquired).fence_token());
    }
    record(span, result.as_ref().map(lease));
    result
}

/// Writes the result of the acquire into the span.
fn record(span: &Span, result: Result<&Lease, &LockError>) {
    match result {
        Ok(lease) => drop(span.record("owner", field::display(lease.owner()))),
        Err(error) => {
            span.record("error.type", error.name());
            if !matches!(error, LockError::Busy { .. }) {
                span.record("otel.status_code", "ERROR");
            }
        }
    }
}

/// The code that calls the manager, and how it wants its locks.
pub(super) struct Caller<'a> {
    manager: &'a LockManager,
    engine: &'a EngineHandle,
    options: &'a LockOptions,
    /// The call chain that it runs in.
    chain: Option<Link>,
    owner: Uuid,
    began: Began,
}

impl<'a> Caller<'a> {
    pub(super) fn new(manager: &'a LockManager, options: &'a LockOptions, began: Began) -> Self {
        let chain = Link::current();
        let engine = &manager.shared.engine;
        Self {
            manager,
            engine,
            options,
            owner: chain
                .as_ref()
                .and_then(|chain| chain.leases().last())
                .map_or_else(Uuid::new_v4, Lease::owner),
            chain,
            began,
        }
    }

    fn waited(&self) -> Duration {
        self.began.waited(self.engine)
    }

    /// The lease that its chain has on the key.
    pub(super) fn held(&self, key: &Key) -> Option<&Lease> {
        self.chain.as_ref().and_then(|chain| chain.find(self.engine, key))
    }

    async fn reenter(&self, lease: &Lease) -> Result<Hold, LockError> {
        if lease.is_shared() && self.options.limit.is_none() {
            return Err(LockError::invalid(format!(
                "the call chain shares {:?} and now wants it alone: two such chains would wait for each other for good; \
                 take it alone from the start, or leave the shared lock before",
                lease.key().typed()
            )));
        }
        let left = self.began.left(self.engine);
        let timeout = left.unwrap_or_else(|| lease.remaining());
        let entered = Hold::enter(lease, timeout).await;
        let outcome = match &entered {
            Ok(_) => AcquireOutcome::ReEntered,
            Err(LockError::Lost { .. }) => AcquireOutcome::Lost,
            Err(LockError::Shutdown { .. }) => AcquireOutcome::Shutdown,
            Err(_) => AcquireOutcome::StoreError,
        };
        self.engine
            .site(self.options.function)
            .acquire_ended(outcome, self.waited());
        let hold = entered?;
        tracing::debug!(key = %lease.key().typed(), owner = %lease.owner(), fence_token = lease.fence_token(),
            waited = ?self.waited(), "lock re-entered");
        Ok(hold)
    }

    /// Refuses to wait for ever under another lock.
    fn check_wait(&self, key: &Key) -> Result<(), LockError> {
        if self.options.wait == Wait::Forever && self.chain.is_some() {
            return Err(LockError::invalid(format!(
                "waiting forever for {:?} is refused under another lock: two call chains could wait for \
                 each other for good; give a wait",
                key.typed()
            )));
        }
        Ok(())
    }

    /// The request to the engine. Its deadline is that of the whole call, even where it does not wait for this lock.
    pub(super) fn call(&self, wait: Wait, begin: Option<Begin>) -> Arc<Call> {
        Arc::new(self.new_call(wait, begin))
    }

    fn new_call(&self, wait: Wait, begin: Option<Begin>) -> Call {
        let mut options = self.options.clone();
        options.wait = wait;
        let on_wait = options.on_wait.take();
        Call {
            owner: self.owner,
            holder: self.manager.holder(self.options.function),
            options,
            since: self.began.since,
            deadline: self.began.deadline,
            nested: self.chain.is_some(),
            takes: dblock_core::machine::call::Takes::No,
            tells_wait: on_wait.map(|on_wait| on_wait.while_it_lives()),
            begin,
        }
    }

    /// Takes the locks on `keys`, which are sorted.
    ///
    /// Asks for all keys at once, without waiting. If some are busy, it gives back the keys above the first
    /// busy one, waits for that one, and asks for the keys above again. So a caller that waits holds smaller
    /// keys only, and no two such callers wait for each other, whatever their keys are.
    async fn acquire_all(&self, keys: &[&Key]) -> Result<Vec<Hold>, LockError> {
        let mut holds = Vec::with_capacity(keys.len());
        loop {
            // A key that was lost meanwhile is missing again, so the keys above it are given back.
            if let Some(lost) = holds
                .iter()
                .position(|hold: &Hold| hold.lease().lost_reason().is_some())
            {
                holds.truncate(lost);
            }
            let missing = &keys[holds.len()..];
            if missing.is_empty() {
                return Ok(holds);
            }
            // No key is above the last one, so nothing would have to be given back: wait for it at once.
            let wait = if missing.len() == 1 {
                self.options.wait
            } else {
                Wait::No
            };
            let call = self.call(wait, None);
            let (granted, refused) = self.engine.acquire_together(missing, &call).await;
            holds.extend(granted);
            let Some(error) = refused else { continue };
            let error = error.after(self.waited());
            if missing.len() == 1 || self.options.wait == Wait::No || !error.is_retryable() {
                return Err(error);
            }
            let call = self.call(self.options.wait, None);
            let hold = self.engine.acquire(keys[holds.len()], call).await;
            holds.push(hold.map_err(|error| error.after(self.waited()))?);
        }
    }
}
