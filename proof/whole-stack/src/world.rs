//! What all parts of a run share: its plan, its time, its log and its verdict.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use uuid::Uuid;

use crate::checks::Checks;
use crate::network::Network;
use crate::plan::Plan;
use crate::server::Server;

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) server: Server,
    began: Instant,
    log: Mutex<Log>,
    network: Mutex<Network>,
    checks: Mutex<Checks>,
    failed: Notify,
}

struct Log {
    /// What has happened, if it is to be told.
    lines: Option<Vec<String>>,
    events: u64,
    /// The ids of leases are random. Each is called by the number of its first appearance.
    leases: HashMap<Uuid, usize>,
    violation: Option<String>,
}

/// Tells what happens, if it is to be told.
macro_rules! tell {
    ($world:expr, $($words:tt)*) => {
        $world.tell(|| format!($($words)*))
    };
}
pub(crate) use tell;

impl World {
    pub(crate) fn new(plan: Plan, traced: bool) -> Arc<Self> {
        let began = Instant::now();
        Arc::new(Self {
            server: Server::new(),
            network: Mutex::new(Network::new(plan.processes, began)),
            checks: Mutex::new(Checks::new(&plan)),
            began,
            log: Mutex::new(Log {
                lines: traced.then(Vec::new),
                events: 0,
                leases: HashMap::new(),
                violation: None,
            }),
            failed: Notify::new(),
            plan,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Network> {
        lock(&self.network)
    }

    pub(crate) fn checks(&self) -> MutexGuard<'_, Checks> {
        lock(&self.checks)
    }

    pub(crate) fn tell(&self, words: impl FnOnce() -> String) {
        let mut log = lock(&self.log);
        log.events += 1;
        if log.lines.is_some() {
            drop(log);
            let line = format!("{:>8} ms  {}", self.now().as_millis(), words());
            lock(&self.log).lines.get_or_insert_default().push(line);
        }
    }

    /// The name of a lease in the log.
    pub(crate) fn lease(&self, id: Uuid) -> String {
        let leases = &mut lock(&self.log).leases;
        let next = leases.len();
        format!("lease {}", leases.entry(id).or_insert(next))
    }

    /// Something that is promised does not hold. The first finding stays.
    pub(crate) fn fail(&self, violation: String) {
        tell!(self, "!! {violation}");
        lock(&self.log).violation.get_or_insert(violation);
        self.failed.notify_one();
    }

    /// Completes when something has failed.
    pub(crate) async fn failed(&self) {
        self.failed.notified().await;
    }

    /// What has happened, and what has failed.
    pub(crate) fn take_log(&self) -> (u64, Vec<String>, Option<String>) {
        let mut log = lock(&self.log);
        let lines = log.lines.take().unwrap_or_default();
        (log.events, lines, log.violation.take())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
