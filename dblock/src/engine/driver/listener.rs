//! Receives wake-ups of releases by other processes. They only save time: without them the callers poll.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::store::{Store, StoreError, StoreErrorKind, WakeUp};

/// Listening ends when no caller has waited for this long.
const IDLE: Duration = Duration::from_mins(1);

/// The pauses after listening failed: from the first, growing to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The pause if the store does not support listening.
const UNSUPPORTED_PAUSE: Duration = Duration::from_mins(10);

#[derive(Debug)]
pub(super) struct Listener {
    /// `None` where the store has no wake-ups.
    store: Option<Arc<dyn Store>>,
    tell: mpsc::UnboundedSender<WakeUp>,
    told: mpsc::UnboundedReceiver<WakeUp>,
    /// The running `listen` of the store: at most one.
    task: JoinSet<StoreError>,
    needed_at: Instant,
    retry_at: Instant,
    pause: Duration,
    /// The last failure was logged.
    complained: bool,
}

impl Listener {
    pub(super) fn new(store: &Arc<dyn Store>) -> Self {
        let (tell, told) = mpsc::unbounded_channel();
        let now = Instant::now();
        Self {
            store: store.capabilities().wake_ups.then(|| Arc::clone(store)),
            tell,
            told,
            task: JoinSet::new(),
            needed_at: now,
            retry_at: now,
            pause: FIRST_PAUSE,
            complained: false,
        }
    }

    /// A caller waits for a key that another process holds.
    pub(super) fn need(&mut self, now: Instant) {
        self.needed_at = now;
        let Some(store) = &self.store else { return };
        if !self.task.is_empty() || now < self.retry_at {
            return;
        }
        let (store, tell) = (Arc::clone(store), self.tell.clone());
        self.task.spawn(async move {
            store
                .listen(&|wake_up| {
                    // The receiver is gone once the engine has stopped.
                    let _ = tell.send(wake_up);
                })
                .await
        });
    }

    /// The next wake-up; `None`: no more arrive from now on.
    ///
    /// # Cancel safety
    /// No wake-up is lost when the future is dropped.
    pub(super) async fn next(&mut self) -> Option<WakeUp> {
        loop {
            let idle_at = self.needed_at + IDLE;
            tokio::select! {
                // Wake-ups that were sent before the end of listening are reported before it.
                biased;
                Some(wake_up) = self.told.recv() => {
                    if wake_up == WakeUp::Listening {
                        self.pause = FIRST_PAUSE;
                        if std::mem::take(&mut self.complained) {
                            tracing::info!("releases by other processes are heard again");
                        }
                    }
                    return Some(wake_up);
                }
                Some(ended) = self.task.join_next() => {
                    match ended {
                        Ok(error) => self.broke(&error),
                        // Stopped because no caller waited.
                        Err(error) if error.is_cancelled() => {}
                        Err(_) => self.broke(&StoreError::new(StoreErrorKind::Other, "the store panicked")),
                    }
                    return None;
                }
                () = sleep_until(idle_at), if !self.task.is_empty() => {
                    self.task.abort_all();
                    self.needed_at = Instant::now();
                }
                () = pending() => {}
            }
        }
    }

    fn broke(&mut self, error: &StoreError) {
        let pause = if error.kind() == StoreErrorKind::Unsupported {
            UNSUPPORTED_PAUSE
        } else {
            self.pause
        };
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        self.retry_at = Instant::now() + pause;
        if !std::mem::replace(&mut self.complained, true) {
            tracing::warn!(%error, "releases by other processes are not heard; waiters poll");
        }
    }
}
