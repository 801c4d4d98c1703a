//! A process: a manager with its engine, and the callers that use it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use dblock::LockManager;
use dblock::store::Store;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::caller::Caller;
use crate::network::Line;
use crate::wire::Wire;
use crate::world::{World, tell};

/// The time in which an engine ends that nobody uses any more: it releases, and closes its store.
const ENDS: Duration = Duration::from_secs(5);

/// By then a caller that waits knows of the shutdown.
const AT_ONCE: Duration = Duration::from_millis(5);

/// The time in which the callers of a manager end that was shut down.
const CALLERS_END: Duration = Duration::from_secs(5);

pub(crate) struct Process {
    pub(crate) line: Arc<Line>,
    pub(crate) locks: LockManager,
    callers: JoinSet<()>,
    store: Weak<dyn Store>,
}

impl Process {
    pub(crate) fn start(world: &Arc<World>, number: usize, lives: u32) -> Self {
        let line = Line::new(number, lives);
        let store: Arc<dyn Store> = Arc::new(Wire::new(Arc::clone(world), Arc::clone(&line)));
        let weak = Arc::downgrade(&store);
        let locks = LockManager::builder(store)
            .hand_over(fastrand::bool())
            .build_lazy()
            .expect("its settings are good");
        tell!(world, "{line} starts");
        let mut callers = JoinSet::new();
        for _ in 0..world.plan.callers {
            let caller = Caller {
                world: Arc::clone(world),
                line: Arc::clone(&line),
                locks: locks.clone(),
            };
            callers.spawn(caller.live());
        }
        Self {
            line,
            locks,
            callers,
            store: weak,
        }
    }

    /// Waits until all callers have made their calls. Returns whether they have in time.
    pub(crate) async fn has_ended(&mut self, within: Duration) -> bool {
        let ends = async { while self.callers.join_next().await.is_some() {} };
        timeout(within, ends).await.is_ok()
    }

    /// Drops what its callers do, and the manager. The engine then ends by itself.
    pub(crate) fn drop_all(mut self, world: &Arc<World>) {
        self.line.end();
        self.callers.abort_all();
        let (world, line, store) = (Arc::clone(world), self.line, self.store);
        let (mut callers, mut jumped) = (self.callers, world.checks().jumped);
        tokio::spawn(async move {
            while callers.join_next().await.is_some() {}
            drop(self.locks);
            sleep(ENDS).await;
            // While it waits for that, time may jump again.
            loop {
                let before = jumped;
                jumped = world.checks().jumped;
                if jumped == before {
                    break;
                }
                sleep(jumped.saturating_sub(before)).await;
            }
            if store.upgrade().is_some() {
                world.fail(format!("ends: the engine of {line} lives on without a handle"));
            }
        });
    }

    /// Nothing that it sends arrives any more.
    pub(crate) fn kill(self, world: &Arc<World>) {
        self.line.die();
        self.drop_all(world);
    }

    /// Shuts the manager down beside its callers.
    pub(crate) async fn shut_down(mut self, world: &Arc<World>, grace: Duration) {
        self.line.end();
        let (since, jumped) = (world.now(), world.checks().jumped);
        let told = async {
            sleep(AT_ONCE).await;
            if let Some(call) = world.checks().waits(&self.line) {
                world.fail(format!(
                    "hangs: call {call} waits after the shutdown of {}",
                    self.line
                ));
            }
        };
        tokio::join!(self.locks.shutdown(grace), told);
        let took = world.now().saturating_sub(since);
        let jumped = world.checks().jumped.saturating_sub(jumped);
        if took > grace + ENDS + jumped {
            world.fail(format!("in time: the shutdown of {} took {took:?}", self.line));
        }
        if !self.has_ended(CALLERS_END).await {
            world.fail(format!("hangs: callers of {} after its shutdown", self.line));
        }
        self.drop_all(world);
    }
}
