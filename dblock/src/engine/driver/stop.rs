//! The end of the engine, in three states: working, grace, closing.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Driver, SHUTDOWN_TIMEOUT};
use crate::LockOptions;
use crate::engine::cells::Machine;

/// The state of the engine's end.
pub(super) enum Stop {
    No,
    /// New outermost locks are refused. Leases still held at `end_at` are ended.
    Grace {
        end_at: Instant,
        done: Vec<oneshot::Sender<()>>,
    },
    /// All leases are ended. Releases may go on until `give_up_at`.
    Closing {
        give_up_at: Instant,
        done: Vec<oneshot::Sender<()>>,
    },
}

impl Stop {
    /// Begins the grace, or shortens it. `asker` is told when the engine has stopped.
    pub(super) fn begin(&mut self, grace: Duration, asker: Option<oneshot::Sender<()>>) {
        let sooner = Instant::now() + grace.min(LockOptions::MAX_DURATION);
        match self {
            Self::No => {
                *self = Self::Grace {
                    end_at: sooner,
                    done: asker.into_iter().collect(),
                }
            }
            Self::Grace { end_at, done } => {
                *end_at = sooner.min(*end_at);
                done.extend(asker);
            }
            Self::Closing { done, .. } => done.extend(asker),
        }
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::Grace { end_at: at, .. } | Self::Closing { give_up_at: at, .. } => Some(*at),
        }
    }

    /// Tells those who asked that the engine has stopped.
    pub(super) fn finish(&mut self) {
        if let Self::Grace { done, .. } | Self::Closing { done, .. } = std::mem::replace(self, Self::No) {
            for asker in done {
                let _ = asker.send(());
            }
        }
    }
}

impl Driver {
    /// Moves on to the next state if it is due. Returns whether the engine is done.
    pub(super) fn may_stop(&mut self) -> bool {
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let counts = &shared.counts;
        if let Stop::Grace { end_at, done } = &mut self.stop {
            if now < *end_at && counts.need_grace.load(Ordering::Acquire) > 0 {
                return false;
            }
            let done = std::mem::take(done);
            self.stop = Stop::Closing {
                give_up_at: now + SHUTDOWN_TIMEOUT,
                done,
            };
            self.shared.stopped.store(true, Ordering::Release);
            self.shared.each(Machine::stop);
            self.send_batches();
        }
        match self.stop {
            Stop::Closing { give_up_at, .. } => {
                let busy = counts.busy.load(Ordering::Acquire) > 0 || !self.tasks.is_empty();
                !busy || now >= give_up_at
            }
            _ => false,
        }
    }
}
