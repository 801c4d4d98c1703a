//! The work under a lock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::Poll;
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{CurrentLock, LockError, LockGuard};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::Worker;
use super::call::{Place, is};
use super::mix::{Plan, Work};
use crate::history::{Event, How, Way, now};
use crate::payment::{Failure, Payment};
use crate::resource::Write;

/// How often a section is polled at least, and notes that it is alive. Much shorter than the margin of the
/// shortest lease, so that a section that outlives its lease by that margin either was not polled, which its
/// last step shows, or was not stopped.
const STEP: Duration = Duration::from_millis(5);

/// How long a section waits for the database or the resource.
const TIMEOUT: Duration = Duration::from_secs(4);

/// The payload of a panic that is part of the plan.
pub(crate) struct Planned;

/// A stay under a lock. Writes down when it begins and, however it ends, when it does.
struct Visit<'a> {
    worker: &'a Worker,
    call: u64,
    token: i64,
    key: String,
    last_step: AtomicI64,
    /// It kept its thread, and has not reached an await since.
    blocked: AtomicBool,
    returned: bool,
}

impl<'a> Visit<'a> {
    fn begin(worker: &'a Worker, call: u64, key: &str, owner: uuid::Uuid, token: i64) -> Self {
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

    /// The section runs and has its lock, as far as it was told.
    fn step(&self) {
        self.last_step.store(now(), Ordering::Relaxed);
    }

    /// Awaits `work` with a step at least every [`STEP`].
    async fn stepping<T>(&self, work: impl Future<Output = T>) -> T {
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

    /// Whether the resource took a write. One that fails for other reasons is not the lock's affair.
    async fn write(&self) -> bool {
        let write = Write {
            from: self.worker.life,
            call: self.call,
            key: self.key.clone(),
            token: self.token,
            sent: now(),
        };
        let accepted = timeout(TIMEOUT, self.worker.resource.write(&write)).await;
        accepted.is_ok_and(|accepted| accepted.unwrap_or(false))
    }
}

impl Drop for Visit<'_> {
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
    /// The body of a call that puts the lock into the chain.
    pub(super) async fn section(self: &Arc<Self>, call: u64, plan: &Plan, outer: Option<CurrentLock>) {
        let lock = dblock::current().expect("a section holds its lock");
        let mut visit = Visit::begin(self, call, &plan.key, lock.owner(), lock.fence_token());
        // Nobody stops these bodies: a child shares the lease of a parent that may only want to be told.
        let told_only = matches!(plan.way, Way::Signal | Way::Inherit);
        let work = visit.stepping(self.work_inside(&visit, plan, &lock, outer));
        if told_only {
            until_lost(work, lock.lost(), || lock.remaining().is_zero()).await;
        } else {
            work.await;
        }
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        visit.returned = true;
    }

    /// The body of a call that has taken two keys together.
    pub(super) async fn section_of_both(self: &Arc<Self>, calls: [u64; 2], plan: &Plan, and: &str) {
        let locks = dblock::current_locks();
        let lock = locks.first().expect("a section holds its locks");
        let begin = |call, key: &str| {
            // A library that has not taken the key has no token for it.
            let token = locks.iter().find(|lock| is(lock.key(), key));
            let token = token.map_or(0, CurrentLock::fence_token);
            Visit::begin(self, call, key, lock.owner(), token)
        };
        let mut first = begin(calls[0], &plan.key);
        let mut second = begin(calls[1], and);
        let work = async {
            self.stay(&first, plan).await;
            if let Work::Transfer(_) = plan.section.work {
                // It checks both.
                self.transfer(&second, plan, &[lock]).await;
            }
        };
        first.stepping(second.stepping(work)).await;
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        (first.returned, second.returned) = (true, true);
    }

    /// Work under a lock that stays for as long as it takes.
    pub(super) async fn section_of<T>(&self, call: u64, key: &str, work: impl Future<Output = T>) -> T {
        let lock = dblock::current().expect("a section holds its lock");
        let mut visit = Visit::begin(self, call, key, lock.owner(), lock.fence_token());
        let value = visit.stepping(work).await;
        visit.returned = true;
        value
    }

    /// The stay of a guard in no chain, whose holder looks after itself.
    pub(super) async fn bare_section(self: &Arc<Self>, call: u64, plan: &Plan, guard: &LockGuard) {
        if guard.is_lost() {
            return;
        }
        let mut visit = Visit::begin(self, call, &plan.key, guard.owner(), guard.fence_token());
        let work = visit.stepping(self.stay(&visit, plan));
        until_lost(work, guard.lost(), || guard.is_lost()).await;
        if plan.section.panics {
            std::panic::panic_any(Planned);
        }
        visit.returned = true;
    }

    async fn work_inside(
        self: &Arc<Self>,
        visit: &Visit<'_>,
        plan: &Plan,
        lock: &CurrentLock,
        outer: Option<CurrentLock>,
    ) {
        if let Some(length) = plan.section.blocks {
            let ms = u32::try_from(length.as_millis()).unwrap_or(u32::MAX);
            self.journal.write(Event::Block { call: visit.call, ms });
            visit.blocked.store(true, Ordering::Relaxed);
            std::thread::sleep(length);
        }
        self.stay(visit, plan).await;
        match (&plan.section.work, outer) {
            (Work::Transfer(_), Some(outer)) => self.transfer(visit, plan, &[&outer, lock]).await,
            (Work::Transfer(_), None) => {
                if let Some(inner) = &plan.section.inner {
                    let place = Place::Within(visit.call);
                    self.call(inner, place, Some(lock.clone())).await;
                }
            }
            _ => match &plan.section.inner {
                Some(inner) if plan.section.spawns => self.spawn(inner, visit.call),
                Some(inner) => self.call(inner, Place::Within(visit.call), None).await,
                None => {}
            },
        }
    }

    /// Stays for as long as planned; a fenced section writes to the resource meanwhile.
    async fn stay(&self, visit: &Visit<'_>, plan: &Plan) {
        let end = tokio::time::Instant::now() + plan.section.length;
        loop {
            if matches!(plan.section.work, Work::Fenced) && !visit.write().await {
                return;
            }
            let rest = end.saturating_duration_since(tokio::time::Instant::now());
            if rest.is_zero() {
                return;
            }
            sleep(rest.min(STEP * 4)).await;
        }
    }

    async fn transfer(&self, visit: &Visit<'_>, plan: &Plan, locks: &[&CurrentLock]) {
        let (Work::Transfer(mut transfer), Some(bank)) = (plan.section.work.clone(), &self.bank) else {
            return;
        };
        transfer.id = self.transfer_id(visit.call);
        // Whether one that failed was committed is for the ledger to say.
        // Without a fence the locks alone must keep the transfers apart.
        let fence: &[_] = if self.locks.capabilities().verify_in {
            locks
        } else {
            &[]
        };
        if let Ok(Ok(())) = timeout(TIMEOUT, Box::pin(bank.transfer(transfer, fence))).await {
            self.journal.write(Event::Transferred { id: transfer.id });
        }
    }

    /// A transfer whose lock ends with its transaction. `None` when it takes too long: it is dropped then.
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
        transfer.id = self.transfer_id(call);
        let payment = Payment {
            transfer,
            key: &plan.key,
            ttl: plan.ttl,
            wait: plan.wait,
            outer: &outer,
        };
        let own = plan.way == Way::InTransaction;
        let paid = Box::pin(bank.pay(&self.locks, &payment, own));
        Some(match timeout(plan.wait + TIMEOUT, paid).await.ok()? {
            Ok(()) => {
                self.journal.write(Event::Transferred { id: transfer.id });
                Ok(())
            }
            // It is rolled back, and could begin anew.
            Err(Failure::Lock(LockError::Store { source, .. }))
                if source.kind() == StoreErrorKind::Conflict =>
            {
                Ok(())
            }
            Err(Failure::Lock(error)) => Err(error),
            Err(Failure::Database) => Ok(()),
        })
    }

    /// Different for every call of every process.
    fn transfer_id(&self, call: u64) -> i64 {
        let process = (self.life.life * 100 + self.life.seat) as u64;
        i64::try_from(process << 32 | call).expect("few processes make few calls")
    }
}

/// Runs work that nobody stops but itself: until it is done, or hears of the loss or sees it by looking.
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
    use crate::resource::ResourceClient;
    use crate::seat::Life;

    /// Whether a body that blocks and then stays for so long writes down that it reached an await.
    async fn reaches_an_await(length: Duration) -> bool {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(crate::history::RUNNER), "").unwrap();
        std::fs::write(folder.path().join(crate::history::RESOURCE), "").unwrap();
        let life = Life { seat: 0, life: 0 };
        let locks = LockManager::builder(MemoryStore::new()).build_lazy().unwrap();
        let nobody = ResourceClient::new(([127, 0, 0, 1], 9).into());
        let worker = Worker::new(life, locks, folder.path(), nobody, None, 1).unwrap();
        let mut plan = mix::blocking(&mut Rng::with_seed(1), 1);
        plan.section.work = Work::Unfenced;
        plan.section.panics = false;
        plan.section.blocks = Some(Duration::from_millis(1));
        plan.section.length = length;
        worker.attempt(&plan, Place::Outermost).await;

        let history = History::read(folder.path()).unwrap();
        let log = &history.workers[&life];
        let place = |wanted: &dyn Fn(&Event) -> bool| log.iter().position(|line| wanted(&line.event));
        let left = place(&|event| matches!(event, Event::Leave { .. })).unwrap();
        assert!(place(&|event| matches!(event, Event::Block { .. })).unwrap() < left);
        place(&|event| matches!(event, Event::Unblock { .. })).is_some_and(|unblocked| unblocked < left)
    }

    #[tokio::test]
    async fn a_blocked_body_tells_of_the_await_that_it_reaches() {
        assert!(reaches_an_await(Duration::from_millis(10)).await);
        assert!(!reaches_an_await(Duration::ZERO).await);
    }
}
