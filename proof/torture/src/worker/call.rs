//! A call for a lock, with its beginning and its end in the history.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dblock::store::{StoreError, StoreErrorKind};
use dblock::{CurrentLock, LockBuilder, LockError, distributed_lock};
use futures_util::FutureExt as _;

use super::Worker;
use super::mix::Plan;
use super::section::Planned;
use crate::history::{End, Event, Form};
use crate::once::PREFIX;

/// Where a call comes from. The checker tells two owners apart by this, the worker's own word, and not by what
/// the library says.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    /// From outside all sections.
    Outermost,
    /// From inside the section of this call, by the same chain.
    Within(u64),
    /// In the transaction of this call, after it has returned.
    Again(u64),
    /// From a task that the section of this call spawned without `inherit`: another chain.
    SpawnedBy(u64),
}

/// A call that has not ended. Its drop writes the end, if nothing else did.
pub(super) struct Asked<'a> {
    worker: &'a Worker,
    pub(super) number: u64,
    key: String,
    answered: bool,
}

impl<'a> Asked<'a> {
    pub(super) fn write_down(worker: &'a Worker, plan: &Plan, origin: Origin) -> Self {
        let number = worker.calls.fetch_add(1, Ordering::Relaxed);
        Self::write_down_as(worker, number, plan, origin)
    }

    fn write_down_as(worker: &'a Worker, number: u64, plan: &Plan, origin: Origin) -> Self {
        let millis = |length: Duration| u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
        worker.journal.write(Event::Ask {
            call: number,
            key: plan.key.clone(),
            form: plan.form,
            ttl_ms: millis(plan.ttl),
            wait_ms: millis(plan.wait),
            renew: plan.renew,
            hold_min_ms: plan.hold_min.map(millis),
            max_hold_ms: plan.max_hold.map(millis),
            limit: plan.limit,
            again: matches!(origin, Origin::Again(_)),
            within: match origin {
                Origin::Within(call) | Origin::Again(call) => Some(call),
                _ => None,
            },
            spawned_by: match origin {
                Origin::SpawnedBy(call) => Some(call),
                _ => None,
            },
        });
        Self {
            worker,
            number,
            key: plan.key.clone(),
            answered: false,
        }
    }

    pub(super) fn answer(mut self, result: &Result<(), LockError>) {
        let (end, by) = match result {
            Ok(()) => (End::Done, None),
            Err(LockError::Busy { holder, .. }) => (End::Busy, holder.as_ref()),
            Err(LockError::Timeout { holder, .. }) => (End::Timeout, holder.as_ref()),
            Err(LockError::Lost { .. }) => (End::Lost, None),
            Err(LockError::Store { source, .. }) if !source.is_retryable() => (End::Refused, None),
            Err(LockError::Store { .. } | LockError::Unconfirmed { .. }) => (End::Store, None),
            Err(LockError::Shutdown { .. }) => (End::Shutdown, None),
            Err(_) => (End::Other, None),
        };
        let text = result
            .as_ref()
            .err()
            .filter(|_| matches!(end, End::Store | End::Refused | End::Other));
        // Of two keys, the other one may have been busy.
        let by = by.filter(|_| {
            result
                .as_ref()
                .is_err_and(|error| error.key().is_some_and(|key| is(key.as_str(), &self.key)))
        });
        self.write_end(
            end,
            by.map(|holder| holder.fence_token),
            text.map(|error| {
                let causes: Vec<_> = anyhow::Chain::new(error).map(ToString::to_string).collect();
                causes.join(": ")
            }),
        );
    }

    fn write_end(&mut self, end: End, by: Option<i64>, text: Option<String>) {
        self.answered = true;
        self.worker.journal.write(Event::Answer {
            call: self.number,
            end,
            by,
            text,
        });
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let end = if std::thread::panicking() {
                End::Panicked
            } else {
                End::Dropped
            };
            self.write_end(end, None, None);
        }
    }
}

/// Whether a full key, with its namespace, is this key.
pub(super) fn is(full: &str, key: &str) -> bool {
    full.rsplit(':').next() == Some(key)
}

impl Worker {
    /// Makes a call that begins a chain, and drops it early if that is planned.
    pub(super) async fn attempt(self: &Arc<Self>, plan: &Plan, origin: Origin) {
        assert!(
            dblock::current().is_none(),
            "a task that did not inherit is in no chain"
        );
        let call = AssertUnwindSafe(self.call(plan, origin, None)).catch_unwind();
        let ended = match plan.dropped_after {
            None => call.await,
            Some(after) => tokio::time::timeout(after, call).await.unwrap_or(Ok(())),
        };
        if let Err(panic) = ended
            && !panic.is::<Planned>()
        {
            resume_unwind(panic);
        }
    }

    /// Makes a call. Boxed, because sections make calls.
    pub(super) fn call<'a>(
        self: &'a Arc<Self>,
        plan: &'a Plan,
        origin: Origin,
        outer: Option<CurrentLock>,
    ) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
        Box::pin(async move {
            if plan.form == Form::Inherit {
                return self.inherit(plan, origin);
            }
            if let Some(and) = &plan.and {
                return self.call_both(plan, and, origin).await;
            }
            let asked = Asked::write_down(self, plan, origin);
            let number = asked.number;
            let result = match plan.form {
                Form::Transaction | Form::InTransaction if self.locks.capabilities().verify_in => {
                    let result = match &self.bank {
                        Some(bank) if !plan.is_transfer() => {
                            self.call_in_transaction(bank, number, plan).await
                        }
                        _ => self.transfer_in_transaction(number, plan, outer).await,
                    };
                    let Some(result) = result else { return };
                    result
                }
                // A store without transactions has the lock alone.
                Form::Run | Form::Signal | Form::Transaction | Form::InTransaction => {
                    let section = self.section(number, plan, outer);
                    self.lock(plan).run(section).await
                }
                Form::Attribute if plan.renew => self.renewed(plan, number, outer).await,
                Form::Attribute => self.not_renewed(plan, number, outer).await,
                Form::Guard => self.guard(plan, number, outer).await,
                Form::BareGuard => self.bare_guard(plan, number).await,
                Form::Inherit | Form::RunAll | Form::AttributeAll | Form::GuardAll => {
                    unreachable!("was handled above")
                }
                Form::Once | Form::Adopt => unreachable!("is written elsewhere"),
            };
            asked.answer(&result);
        })
    }

    pub(super) fn lock(&self, plan: &Plan) -> LockBuilder<'_> {
        self.locks.lock(&plan.key).options(&plan.options())
    }

    /// Takes the lock around a call of `run_once`, by `run`.
    pub(super) async fn call_with(self: &Arc<Self>, plan: &Plan, body: impl AsyncFnOnce(u64)) {
        let asked = Asked::write_down(self, plan, Origin::Outermost);
        let number = asked.number;
        let section = async { self.section_of(number, &plan.key, body(number)).await };
        let result = self.lock(plan).run(section).await;
        asked.answer(&result);
    }

    /// Writes the body of a run as a section of its lock.
    pub(super) async fn body_of_run<T>(
        self: &Arc<Self>,
        plan: &Plan,
        origin: Origin,
        body: impl AsyncFnOnce(u64) -> T,
    ) -> T {
        let asked = Asked::write_down(self, plan, origin);
        let number = asked.number;
        let value = self.section_of(number, &plan.key, body(number)).await;
        asked.answer(&Ok(()));
        value
    }

    /// Takes two keys together.
    async fn call_both(self: &Arc<Self>, plan: &Plan, and: &str, origin: Origin) {
        let first = Asked::write_down(self, plan, origin);
        let plan_of_second = Plan {
            key: and.to_owned(),
            ..plan.clone()
        };
        let second = Asked::write_down(self, &plan_of_second, Origin::Within(first.number));
        let numbers = [first.number, second.number];
        let section = self.section_of_both(numbers, plan, and);
        let result = match plan.form {
            Form::RunAll => {
                let keys = [plan.key.as_str(), and];
                self.locks.lock(keys).options(&plan.options()).run(section).await
            }
            Form::AttributeAll => self.both(plan, and, section).await,
            _ => self.guard_of_both(plan, and, numbers, section).await,
        };
        second.answer(&result);
        first.answer(&result);
    }

    #[distributed_lock(
        keys = ["{plan.key}", and],
        ttl = plan.ttl,
        wait = plan.wait,
        renew = plan.renew,
        manager = self.locks
    )]
    async fn both(
        self: &Arc<Self>,
        plan: &Plan,
        and: &str,
        section: impl Future<Output = ()>,
    ) -> Result<(), LockError> {
        section.await;
        Ok(())
    }

    async fn guard_of_both(
        &self,
        plan: &Plan,
        and: &str,
        numbers: [u64; 2],
        section: impl Future<Output = ()>,
    ) -> Result<(), LockError> {
        let keys = [plan.key.as_str(), and];
        let guard = self.locks.lock(keys).options(&plan.options()).acquire().await?;
        guard.enter(section).await?;
        guard.release().await?;
        for call in numbers {
            self.journal.write(Event::Released { call });
        }
        Ok(())
    }

    #[distributed_lock(key = "{plan.key}", ttl = plan.ttl, wait = plan.wait, manager = self.locks)]
    async fn renewed(
        self: &Arc<Self>,
        plan: &Plan,
        number: u64,
        outer: Option<CurrentLock>,
    ) -> Result<(), LockError> {
        self.section(number, plan, outer).await;
        Ok(())
    }

    #[distributed_lock(key = plan.key, ttl = plan.ttl, wait = plan.wait, renew = false, manager = self.locks)]
    async fn not_renewed(
        self: &Arc<Self>,
        plan: &Plan,
        number: u64,
        outer: Option<CurrentLock>,
    ) -> Result<(), LockError> {
        self.section(number, plan, outer).await;
        Ok(())
    }

    async fn guard(
        self: &Arc<Self>,
        plan: &Plan,
        number: u64,
        outer: Option<CurrentLock>,
    ) -> Result<(), LockError> {
        let guard = self.lock(plan).acquire().await?;
        guard.enter(self.section(number, plan, outer)).await?;
        self.release(guard, number).await
    }

    async fn bare_guard(self: &Arc<Self>, plan: &Plan, number: u64) -> Result<(), LockError> {
        let guard = self.lock(plan).acquire().await?;
        self.bare_section(number, plan, &guard).await;
        self.release(guard, number).await
    }

    async fn release(&self, guard: dblock::LockGuard, number: u64) -> Result<(), LockError> {
        guard.release().await?;
        self.journal.write(Event::Released { call: number });
        Ok(())
    }

    /// Spawns a task that makes a call of its own; nobody waits for the task. It shares no lock with the
    /// section that spawns it.
    pub(super) fn spawn(self: &Arc<Self>, plan: &Plan, by: u64) {
        let (worker, plan) = (Arc::clone(self), plan.clone());
        // Boxed, because the task's section may spawn another task.
        let call: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(async move { worker.attempt(&plan, Origin::SpawnedBy(by)).await });
        tokio::spawn(call);
    }

    /// Spawns a task that shares the lock; nobody waits for the task.
    pub(super) fn inherit(self: &Arc<Self>, plan: &Plan, origin: Origin) {
        let (worker, plan) = (Arc::clone(self), plan.clone());
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let section = {
            let (worker, plan) = (Arc::clone(self), plan.clone());
            async move { worker.section(number, &plan, None).await }
        };
        // The child's hold counts from here.
        let child = dblock::inherit(section);
        let blocks = plan.section.blocks.is_some();
        let task = async move {
            let asked = Asked::write_down_as(&worker, number, &plan, origin);
            let ended = AssertUnwindSafe(child).catch_unwind().await;
            let is_run = plan.key.starts_with(PREFIX);
            let is_conflict = |error: &StoreError| error.kind() == StoreErrorKind::Conflict;
            match ended {
                // The lock of a run ends with a transaction already, or with the outcome on its way.
                Ok(Err(LockError::Invalid { .. })) if is_run => drop(asked),
                Ok(Err(LockError::Store { source, .. })) if is_run && is_conflict(&source) => drop(asked),
                Ok(result) => asked.answer(&result),
                Err(_) => drop(asked),
            }
        };
        if blocks {
            // A thread of its own, so that the child stops no other task.
            let runtime = tokio::runtime::Handle::current();
            tokio::task::spawn_blocking(move || runtime.block_on(task));
        } else {
            tokio::spawn(task);
        }
    }
}
