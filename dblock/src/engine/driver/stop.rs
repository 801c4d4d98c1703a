//! The end of the engine, in three steps: work, grace, farewell.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Driver, FAREWELL};
use crate::engine::core::key::Event;
use crate::options::LockOptions;

/// The end of the engine.
pub(super) enum Stop {
    No,
    /// No new outermost locks; what is held at `end_at` is ended.
    Grace {
        end_at: Instant,
        done: Vec<oneshot::Sender<()>>,
    },
    /// Everything has been ended; releases may go on until `give_up_at`.
    Farewell {
        give_up_at: Instant,
        done: Vec<oneshot::Sender<()>>,
    },
}

impl Stop {
    /// Begins the grace, or cuts it short. `asker` is told when the engine has stopped.
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
            Self::Farewell { done, .. } => done.extend(asker),
        }
    }

    pub(super) fn wakes_at(&self) -> Option<Instant> {
        match self {
            Self::No => None,
            Self::Grace { end_at: at, .. } | Self::Farewell { give_up_at: at, .. } => Some(*at),
        }
    }

    /// Tells those who asked that the engine has stopped.
    pub(super) fn finish(&mut self) {
        if let Self::Grace { done, .. } | Self::Farewell { done, .. } = std::mem::replace(self, Self::No) {
            for asker in done {
                let _ = asker.send(());
            }
        }
    }
}

impl Driver {
    /// Moves the stop on. Returns whether the engine is done.
    pub(super) fn may_stop(&mut self) -> bool {
        let now = Instant::now();
        let shared = Arc::clone(&self.shared);
        let counts = &shared.counts;
        if let Stop::Grace { end_at, done } = &mut self.stop {
            if now < *end_at && counts.need_grace.load(Ordering::Acquire) > 0 {
                return false;
            }
            let done = std::mem::take(done);
            self.stop = Stop::Farewell {
                give_up_at: now + FAREWELL,
                done,
            };
            self.shared.stopped.store(true, Ordering::Release);
            self.shared.each(|| Event::Stop);
            self.send_batches();
        }
        match self.stop {
            Stop::Farewell { give_up_at, .. } => {
                let busy = counts.busy.load(Ordering::Acquire) > 0 || !self.admin_tasks.is_empty();
                !busy || now >= give_up_at
            }
            _ => false,
        }
    }
}
