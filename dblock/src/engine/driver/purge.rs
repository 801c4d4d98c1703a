//! Deletes the rows of keys that nobody uses any more, and the records that are no longer remembered: in the
//! background, and for operators.
//!
//! A release leaves its row, so a table with a key for each order would grow for ever. A pass walks over the
//! table in small steps with pauses in between. It takes at most ten steps a second, which read 5,000 rows, and
//! keeps the connection for admin tasks busy for at most a fifth of the time: a million rows take a little more
//! than three minutes. A step is one statement; some stores need one or two more round trips if there is
//! something to delete. Every manager does its own passes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::Key;
use crate::LockError;
use crate::engine::handle::Permits;
use crate::engine::{EngineHandle, Permit};
use crate::store::{Purged, Store, StoreError, StoreErrorKind};

/// Shortest idle time before a row may be purged. The first token of a key without a row is the clock's, so a
/// purge is safe as long as the clock is set back by less than the idle time.
pub(crate) const SHORTEST_IDLE: Duration = Duration::from_hours(24);

/// Idle time where none is given.
pub(crate) const DEFAULT_IDLE: Duration = Duration::from_hours(7 * 24);

/// How many rows a step reads.
const STEP_ROWS: u32 = 500;

/// Time limit of a step.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause after a step in the background: at least this, and at least `PAUSE_PER_STEP` times as long as
/// the step took.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_PER_STEP: u32 = 4;

/// The first pass starts within this time, so that programs that run for an hour do their share. Later passes
/// start after this part of the idle time, so that each finds enough rows.
const FIRST_PASS_WITHIN: Duration = Duration::from_hours(1);
const PASSES_PER_IDLE: u32 = 24;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_hours(1);

/// Refuses an idle time that is too short.
pub(crate) fn check(idle: Duration) -> Result<(), LockError> {
    if idle < SHORTEST_IDLE {
        return Err(LockError::invalid(format!(
            "a purge of rows that were idle for {idle:?} is refused: give it at least a day, so that fence tokens \
             grow even when the database's clock is set back"
        )));
    }
    Ok(())
}

/// Purges in the background until the returned handle is dropped.
pub(super) fn start(
    store: Arc<dyn Store>,
    permits: Arc<Permits>,
    idle: Option<Duration>,
) -> Option<AbortOnDropHandle<()>> {
    let background = Background {
        store,
        permits,
        idle: idle?,
        part: Part::Rows,
        after: None,
        complained: false,
    };
    Some(AbortOnDropHandle::new(tokio::spawn(background.run())))
}

/// A pass walks over the rows first, and then over the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Rows,
    Records,
}

struct Background {
    store: Arc<dyn Store>,
    permits: Arc<Permits>,
    idle: Duration,
    /// How far the pass is. After a failure it continues from there.
    part: Part,
    /// The last key of the part that was read.
    after: Option<Key>,
    /// The last failure was logged.
    complained: bool,
}

impl Background {
    async fn run(mut self) {
        let mut pause = FIRST_PASS_WITHIN.mul_f64(fastrand::f64());
        loop {
            sleep(pause).await;
            pause = match self.pass().await {
                Ok(rows) => {
                    tracing::debug!(rows, idle = ?self.idle, "purged idle rows");
                    self.idle / PASSES_PER_IDLE
                }
                Err(error) => {
                    self.complain(&error);
                    if self.part == Part::Records {
                        // A lack of rights on the records, for example, must not stop the purge of rows.
                        (self.part, self.after) = (Part::Rows, None);
                    }
                    PAUSE_AFTER_FAILURE
                }
            };
            // Jitter, so that processes that started together do not purge in step.
            pause = pause.mul_f64(0.75 + fastrand::f64() / 2.0);
        }
    }

    async fn pass(&mut self) -> Result<u64, StoreError> {
        let mut rows = 0;
        loop {
            let permit = self.permits.permit(Permit::Admin).await;
            let start = Instant::now();
            let purged = step(&*self.store, self.part, self.idle, self.after.as_ref()).await?;
            drop(permit);
            self.complained = false;
            rows += purged.rows;
            self.after = purged.next;
            match (&self.after, self.part) {
                (Some(_), _) => {}
                (None, Part::Rows) => {
                    self.part = Part::Records;
                    continue;
                }
                (None, Part::Records) => {
                    self.part = Part::Rows;
                    return Ok(rows);
                }
            }
            sleep(SHORTEST_PAUSE.max(start.elapsed() * PAUSE_PER_STEP)).await;
        }
    }

    fn complain(&mut self, error: &StoreError) {
        if std::mem::replace(&mut self.complained, true) {
            tracing::debug!(%error, "idle rows could not be purged again");
        } else {
            tracing::warn!(%error, "idle rows could not be purged; this is tried again about each hour");
        }
    }
}

async fn step(
    store: &dyn Store,
    part: Part,
    idle: Duration,
    after: Option<&Key>,
) -> Result<Purged, StoreError> {
    let purging = match (part, store.records()) {
        (Part::Rows, _) => store.purge(idle, after, STEP_ROWS),
        (Part::Records, Some(records)) => records.purge(after, STEP_ROWS),
        (Part::Records, None) => return Ok(Purged::default()),
    };
    let step = timeout(STEP_TIMEOUT, purging);
    let purged = step.await.unwrap_or_else(|_| {
        let message = format!("the database has not purged {STEP_ROWS} rows within {STEP_TIMEOUT:?}");
        Err(StoreError::new(StoreErrorKind::Interrupted, message))
    });
    match purged {
        // A role without rights on the table of records has written none; others purge it.
        Err(error) if part == Part::Records && error.kind() == StoreErrorKind::Refused => {
            tracing::debug!(%error, "records are left to others to purge");
            Ok(Purged::default())
        }
        purged => purged,
    }
}

impl EngineHandle {
    /// Does a whole pass now. Each step is an admin task of its own, so that others can run in between.
    pub(crate) async fn purge(&self, idle: Duration) -> Result<u64, LockError> {
        check(idle)?;
        let (mut rows, mut part, mut after) = (0, Part::Rows, None);
        loop {
            let start = Instant::now();
            let from = after.take();
            let purge =
                move |store: Arc<dyn Store>| async move { step(&*store, part, idle, from.as_ref()).await };
            let purged = self.run(Permit::Admin, None, STEP_TIMEOUT * 2, purge).await?;
            rows += purged.rows;
            after = purged.next;
            let Some(last) = &after else {
                if part == Part::Rows {
                    part = Part::Records;
                    continue;
                }
                tracing::info!(rows, ?idle, "purged idle rows");
                return Ok(rows);
            };
            tracing::debug!(rows, %last, "purging idle rows");
            // Leaves half of the time to others.
            sleep(start.elapsed()).await;
        }
    }
}
