//! The work under a lock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use dblock::{CurrentLock, LockError, LockGuard};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Worker;
use super::call::{Origin, is};
use super::mix::{Plan, Work};
use super::transaction::answer;
use crate::counter::Counter;
use crate::history::{Event, Form, How, now};
use crate::payment::Payment;
use crate::resource::Write;

/// How often a section takes a step at least. Much shorter than the margin of the shortest lease: if a section
/// outlives its lease by that margin, its last step shows whether it was not polled or not stopped.
const STEP: Duration = Duration::from_millis(5);

/// How long a section waits for the database or the resource.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The payload of a panic that is part of the plan.
pub(crate) struct Planned;

/// A section while it runs. Writes its beginning and, on drop, its end.
pub(super) struct RunningSection<'a> {
    worker: &'a Worker,
    call: u64,
    pub(super) token: i64,
    key: String,
    last_step: AtomicI64,
    /// The body blocked its thread and has not reached an await since.
    blocked: AtomicBool,
    pub(super) returned: bool,
}

impl<'a> RunningSection<'a> {
    pub(super) fn begin(worker: &'a Worker, call: u64, key: &str, owner: uuid::Uuid, token: i64) -> Self {
        let at = worker.journal.write(Event::Enter {
            call,
            owner: owner.simple().to_string(),
            token,
        });
        Self {
            worker,
            call,
            token,
            key: key.to_owned(),
            last_step: AtomicI64::new(at),
            blocked: AtomicBool::new(false),
            returned: false,
        }
    }

    /// The section runs, and has its lock as far as it knows.
    fn step(&self) {
        self.last_step.store(now(), Ordering::Relaxed);
    }

    /// Awaits `work` with a step at least every [`STEP`].
    pub(super) async fn stepping<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let mut work = poll_fn(|context| {
            let polled = work.as_mut().poll(context);
            if polled.is_pending() && self.blocked.swap(false, Ordering::Relaxed) {
                self.worker.journal.write(Event::Unblock { call: self.call });
            }
            polled
        });
        let mut steps = interval(STEP);
        steps.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                value = &mut work => {
                    self.step();
                    return value;
                }
                _ = steps.tick() => self.step(),
            }
        }
    }

    /// Whether the resource accepted a write.
    async fn write(&self) -> bool {
        let write = Write {
            from: self.worker.process,
            call: self.call,
            key: self.key.clone(),
            token: self.token,
            sent: now(),
        };
        let accepted = timeout(TIMEOUT, self.worker.resource.write(&write)).await;
        accepted.is_ok_and(|accepted| accepted.unwrap_or(false))
    }
}

impl Drop for RunningSection<'_> {
    fn drop(&mut self) {
        let how = match (self.returned, std::thread::panicking()) {
            (true, _) => How::Returned,
            (false, true) => How::Panicked,
            (false, false) => How::Dropped,
        };
        let last_step = self.last_step.load(Ordering::Relaxed);
        self.worker.journal.write(Event::Leave {
            call: self.call,
            last_step,
            how,
        });
    }
}

impl Worker {
    /// The body of a call whose lock is in the chain.
    pub(super) async fn section(self: &Arc<Self>, call: u64, plan: &Plan, outer: Option<CurrentLock>) {
        let lock = dblock::current().expect("a section holds its lock");
        let mut section = RunningSection::begin(self, call, &plan.key, lock.owner(), lock.fence_token());
        // The library stops neither body: the child may share the lease of a parent that asked for a signal.
        let told_only = matches!(plan.form, Form::Signal | Form::Inherit);
        let work = section.stepping(self.work_inside(&section, plan, &lock, outer));
        if told_only {
            until_lost(work, lock.lost(), || lock.remaining().is_zero()).await;
        } else {
            work.await;
        }
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        section.returned = true;
    }

    /// The body of a call that took two keys.
    pub(super) async fn section_of_both(self: &Arc<Self>, calls: [u64; 2], plan: &Plan, and: &str) {
        let locks = dblock::current_locks();
        let lock = locks.first().expect("a section holds its locks");
        let begin = |call, key: &str| {
            // Without the token, if the library did not take the key.
            let token = locks.iter().find(|lock| is(lock.key(), key));
            let token = token.map_or(0, CurrentLock::fence_token);
            RunningSection::begin(self, call, key, lock.owner(), token)
        };
        let mut first = begin(calls[0], &plan.key);
        let mut second = begin(calls[1], and);
        let work = async {
            self.pass_time(&first, plan).await;
            if let Work::Transfer(_) = plan.section.work {
                // One lock checks both keys.
                self.transfer(&second, plan, &[lock]).await;
            }
        };
        first.stepping(second.stepping(work)).await;
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        (first.returned, second.returned) = (true, true);
    }

    /// A section that lasts until `work` is done.
    pub(super) async fn section_of<T>(&self, call: u64, key: &str, work: impl Future<Output = T>) -> T {
        let lock = dblock::current().expect("a section holds its lock");
        let mut section = RunningSection::begin(self, call, key, lock.owner(), lock.fence_token());
        let value = section.stepping(work).await;
        section.returned = true;
        value
    }

    /// The section of a guard in no chain; it checks for the loss itself.
    pub(super) async fn bare_section(self: &Arc<Self>, call: u64, plan: &Plan, guard: &LockGuard) {
        if guard.is_lost() {
            return;
        }
        let mut section = RunningSection::begin(self, call, &plan.key, guard.owner(), guard.fence_token());
        let work = section.stepping(self.pass_time(&section, plan));
        until_lost(work, guard.lost(), || guard.is_lost()).await;
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        section.returned = true;
    }

    async fn work_inside(
        self: &Arc<Self>,
        section: &RunningSection<'_>,
        plan: &Plan,
        lock: &CurrentLock,
        outer: Option<CurrentLock>,
    ) {
        if let Some(length) = plan.section.blocks {
            let ms = u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
            let call = section.call;
            self.journal.write(Event::Block { call, ms });
            section.blocked.store(true, Ordering::Relaxed);
            std::thread::sleep(length);
        }
        self.pass_time(section, plan).await;
        if plan.counts {
            self.count(section, lock).await;
        }
        match (&plan.section.work, outer) {
            (Work::Transfer(_), Some(outer)) => self.transfer(section, plan, &[&outer, lock]).await,
            (Work::Transfer(_), None) => {
                if let Some(inner) = &plan.section.inner {
                    let origin = Origin::Within(section.call);
                    self.call(inner, origin, Some(lock.clone())).await;
                }
            }
            _ => match &plan.section.inner {
                Some(inner) if plan.section.spawns => self.spawn(inner, section.call),
                Some(inner) => self.call(inner, Origin::Within(section.call), None).await,
                None => {}
            },
        }
    }

    /// Lets the planned time pass; a fenced section writes to the resource meanwhile.
    pub(super) async fn pass_time(&self, section: &RunningSection<'_>, plan: &Plan) {
        let end = tokio::time::Instant::now() + plan.section.length;
        loop {
            if matches!(plan.section.work, Work::Fenced) && !section.write().await {
                return;
            }
            let rest = end.saturating_duration_since(tokio::time::Instant::now());
            if rest.is_zero() {
                return;
            }
            sleep(rest.min(STEP * 4)).await;
        }
    }

    async fn count(&self, section: &RunningSection<'_>, lock: &CurrentLock) {
        let Some(bank) = &self.bank else { return };
        let counter = Counter {
            key: &section.key,
            id: self.process.id_of(section.call),
        };
        // One that failed may have been committed.
        if let Ok(Ok(())) = timeout(TIMEOUT, Box::pin(bank.count(&counter, lock))).await {
            let (call, committed) = (section.call, true);
            self.journal.write(Event::Concluded { call, committed });
        }
    }

    async fn transfer(&self, section: &RunningSection<'_>, plan: &Plan, locks: &[&CurrentLock]) {
        let (Work::Transfer(mut transfer), Some(bank)) = (plan.section.work.clone(), &self.bank) else {
            return;
        };
        transfer.id = self.process.id_of(section.call);
        // Without a fence the locks alone must keep the transfers apart.
        let fence: &[_] = if self.locks.capabilities().verify_in {
            locks
        } else {
            &[]
        };
        // A transfer that failed may have been committed; the ledger shows it.
        if let Ok(Ok(())) = timeout(TIMEOUT, Box::pin(bank.transfer(transfer, fence))).await {
            self.journal.write(Event::Transferred { id: transfer.id });
        }
    }

    /// A transfer whose lock ends with its transaction. `None` if it took too long and was dropped.
    pub(super) async fn transfer_in_transaction(
        &self,
        call: u64,
        plan: &Plan,
        outer: Option<CurrentLock>,
    ) -> Option<Result<(), LockError>> {
        let (Work::Transfer(mut transfer), Some(bank), Some(outer)) =
            (plan.section.work.clone(), &self.bank, outer)
        else {
            return Some(Ok(()));
        };
        transfer.id = self.process.id_of(call);
        let payment = Payment {
            transfer,
            key: &plan.key,
            ttl: plan.ttl,
            wait: plan.wait,
            outer: &outer,
        };
        let own = plan.form == Form::InTransaction;
        let paid = Box::pin(bank.pay(&self.locks, &payment, own));
        let paid = timeout(plan.wait + TIMEOUT, paid).await.ok()?;
        if paid.is_ok() {
            self.journal.write(Event::Transferred { id: transfer.id });
        }
        self.conclude(call, plan.form, &paid);
        Some(answer(paid))
    }
}

/// Runs `work` until it is done, or until the loss is signalled or `is_lost` says so.
async fn until_lost<L>(
    work: impl Future<Output = ()>,
    lost: impl Future<Output = L>,
    is_lost: impl Fn() -> bool,
) {
    let (mut work, mut lost) = (pin!(work), pin!(lost));
    poll_fn(|context| {
        if is_lost() || lost.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        work.as_mut().poll(context)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use dblock::LockManager;
    use dblock::store::MemoryStore;
    use fastrand::Rng;

    use super::super::mix;
    use super::*;
    use crate::history::History;
    use crate::process_id::ProcessId;
    use crate::resource::ResourceClient;

    /// Whether a body that blocks and then lasts for so long writes that it reached an await.
    async fn reaches_an_await(length: Duration) -> bool {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(crate::history::RUNNER), "").unwrap();
        std::fs::write(folder.path().join(crate::history::RESOURCE), "").unwrap();
        let process = ProcessId::first(0);
        let locks = LockManager::builder(MemoryStore::new()).build_lazy().unwrap();
        let nobody = ResourceClient::new(([127, 0, 0, 1], 9).into());
        let worker = Worker::new(process, locks, folder.path(), nobody, None, 1).unwrap();
        let mut plan = mix::blocking(&mut Rng::with_seed(1), 1);
        plan.section.work = Work::Unfenced;
        plan.section.panics = false;
        plan.section.blocks = Some(Duration::from_millis(1));
        plan.section.length = length;
        worker.attempt(&plan, Origin::Outermost).await;

        let history = History::read(folder.path()).unwrap();
        let log = &history.workers[&process];
        let position = |wanted: &dyn Fn(&Event) -> bool| log.iter().position(|line| wanted(&line.event));
        let left = position(&|event| matches!(event, Event::Leave { .. })).unwrap();
        assert!(position(&|event| matches!(event, Event::Block { .. })).unwrap() < left);
        position(&|event| matches!(event, Event::Unblock { .. })).is_some_and(|unblocked| unblocked < left)
    }

    #[tokio::test]
    async fn a_blocked_body_tells_of_the_await_that_it_reaches() {
        assert!(reaches_an_await(Duration::from_millis(10)).await);
        assert!(!reaches_an_await(Duration::ZERO).await);
    }
}
