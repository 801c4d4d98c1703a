//! The end of the engine, in three steps: work, grace, farewell.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::options::MAX_DURATION;

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
        let sooner = Instant::now() + grace.min(MAX_DURATION);
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
}
