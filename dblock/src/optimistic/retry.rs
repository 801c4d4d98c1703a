//! Runs a body again after a conflict: how often, and with which pauses.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::Conflict;
use dblock_core::rounded;

/// How often a body runs, and how long the pauses in between are. The defaults are at most 5 runs within 10
/// seconds, and pauses of up to 10 ms at first and up to 200 ms later.
///
/// ```
/// use std::time::Duration;
/// use dblock::optimistic::RetryOptions;
///
/// let options = RetryOptions::new()
///     .times(8)
///     .backoff(Duration::from_millis(5)..Duration::from_millis(100))
///     .within(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct RetryOptions {
    times: u32,
    backoff: Range<Duration>,
    within: Duration,
    function: Option<&'static str>,
}

impl RetryOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            times: 5,
            backoff: Duration::from_millis(10)..Duration::from_millis(200),
            within: Duration::from_secs(10),
            function: None,
        }
    }

    /// How often the body runs at most, the first run included. Default: 5.
    ///
    /// # Panics
    /// If `times` is 0.
    pub fn times(mut self, times: u32) -> Self {
        assert!(
            times > 0,
            "`times` is 0, but the body runs once at least: give it 2 or more"
        );
        self.times = times;
        self
    }

    /// The pauses between two runs. A pause is random, from nothing up to a limit (full jitter). The limit is
    /// the start of the range at first, and doubles with each run up to the end of the range. Default: 10 ms
    /// to 200 ms.
    ///
    /// # Panics
    /// If the end is before the start.
    pub fn backoff(mut self, backoff: Range<Duration>) -> Self {
        assert!(
            backoff.start <= backoff.end,
            "`backoff` starts at {:?}, which is longer than its end, {:?}: swap them",
            backoff.start,
            backoff.end
        );
        self.backoff = backoff;
        self
    }

    /// No run starts later than this after the first one started. A run that is going on is not stopped,
    /// because its commit may be on the way. Default: 10 seconds.
    pub const fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The path of the function, for the log.
    pub const fn function(mut self, path: &'static str) -> Self {
        self.function = Some(path);
        self
    }

    /// The longest pause after this many runs.
    fn longest_pause(&self, runs: u32) -> Duration {
        let doubled = 1_u32.checked_shl(runs - 1).unwrap_or(u32::MAX);
        self.backoff.start.saturating_mul(doubled).min(self.backoff.end)
    }
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs `body`, and runs it again with a pause when its error is a [conflict](Conflict), as the attribute
/// [`optimistic_retry`](macro@crate::optimistic_retry) does. The module says
/// [what a body must keep](crate::optimistic#what-a-body-must-keep). An `async ||` closure may borrow what is
/// around it, but not change it.
///
/// ```
/// use dblock::optimistic::{ExpectVersion, RetryOptions, StaleVersion, retry};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let version = std::cell::Cell::new(7); // somebody else's change is on its way
/// let written = retry(RetryOptions::new(), async || {
///     let read = version.get();
///     version.set(8);
///     let changed = u64::from(read == 8); // `UPDATE … WHERE version = $1`
///     changed.expect_version("stock", 42, read)?;
///     Ok::<_, StaleVersion>(read)
/// })
/// .await?;
/// assert_eq!(written, 8);
/// # Ok::<_, StaleVersion>(()) }).unwrap();
/// ```
///
/// # Errors
/// The body's error: at once if it is no conflict, else the last one when the body has run `times` times or
/// `within` is over. The log then says how often the body ran, and [`Conflict::exhausted`] is told.
///
/// # Cancel safety
/// Dropping the future drops the run that is going on, or the pause. Nothing else is left behind.
///
/// # Panics
/// If it has to pause outside of a tokio runtime, or in one without time.
pub async fn retry<T, E, F>(options: RetryOptions, mut body: impl FnMut() -> F) -> Result<T, E>
where
    E: Conflict,
    // Not `AsyncFnMut`: the compiler could not tell that the future of a body that borrows is `Send`.
    F: Future<Output = Result<T, E>>,
{
    let mut retry = Retry::new(options);
    loop {
        match retry.after(body().await) {
            ControlFlow::Break(result) => return result,
            ControlFlow::Continue(pause) => pause.await,
        }
    }
}

/// The runs of one call.
#[derive(Debug)]
pub struct Retry {
    options: RetryOptions,
    runs: u32,
    since: Instant,
}

impl Retry {
    /// Before the first run.
    pub fn new(options: RetryOptions) -> Self {
        Self {
            options,
            runs: 0,
            since: Instant::now(),
        }
    }

    /// Decides whether the call returns the result of a run, or the body runs again after a pause.
    pub(super) fn after<T, E: Conflict>(&mut self, result: Result<T, E>) -> ControlFlow<Result<T, E>, Sleep> {
        self.runs += 1;
        let error = match result {
            Err(error) if error.is_conflict() => error,
            result => return ControlFlow::Break(result),
        };
        let RetryOptions {
            times,
            within,
            function,
            ..
        } = self.options;
        let (runs, elapsed) = (self.runs, self.since.elapsed());
        let left = within.saturating_sub(elapsed);
        if runs >= times || left.is_zero() {
            tracing::warn!(function, tries = runs, elapsed = ?rounded(elapsed), %error,
                "still a conflict: the body does not run again");
            return ControlFlow::Break(Err(error.exhausted(runs)));
        }
        let pause = self
            .options
            .longest_pause(runs)
            .min(left)
            .mul_f64(fastrand::f64());
        tracing::debug!(function, tries = runs, ?pause, %error, "a conflict: the body runs again");
        ControlFlow::Continue(tokio::time::sleep(pause))
    }
}
