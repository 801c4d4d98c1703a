//! How often a body runs, the pauses in between, and what is told at the end: on paused time.

use std::cell::RefCell;
use std::time::Duration;

use dblock::optimistic::{RetryOptions, StaleVersion, retry};
use dblock::optimistic_retry;
use tokio::time::{Instant, sleep};

use crate::{Runs, StockError};

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(200);

fn options() -> RetryOptions {
    RetryOptions::new().backoff(FIRST..LONGEST)
}

fn stale() -> StaleVersion {
    StaleVersion::new("stock", 42, 7)
}

/// When each run of a body began that never succeeds, and the last error.
async fn starts(options: RetryOptions, length: Duration) -> (Vec<Instant>, StaleVersion) {
    let starts = RefCell::new(Vec::new());
    let begin = || RefCell::borrow_mut(&starts).push(Instant::now());
    let result = retry(options, async || {
        begin();
        sleep(length).await;
        Err::<(), _>(stale())
    });
    let error = result.await.unwrap_err();
    (starts.into_inner(), error)
}

#[tokio::test(start_paused = true)]
async fn pauses_are_random_up_to_a_limit_that_doubles() {
    let mut longest = [Duration::ZERO; 8];
    let mut shortest = [Duration::MAX; 8];
    for _ in 0..200 {
        let (starts, _) = starts(options().times(9), Duration::ZERO).await;
        for (at, pair) in starts.windows(2).enumerate() {
            let pause = pair[1] - pair[0];
            longest[at] = longest[at].max(pause);
            shortest[at] = shortest[at].min(pause);
        }
    }
    for (at, limit) in [10, 20, 40, 80, 160, 200, 200, 200]
        .map(Duration::from_millis)
        .into_iter()
        .enumerate()
    {
        // The timer has ticks of a millisecond.
        let tick = Duration::from_millis(1);
        assert!(
            longest[at] <= limit + tick,
            "pause {at}: {:?} of {limit:?}",
            longest[at]
        );
        assert!(
            longest[at] >= limit.mul_f64(0.8),
            "pause {at}: only {:?}",
            longest[at]
        );
        assert!(
            shortest[at] <= limit.mul_f64(0.2) + tick,
            "pause {at}: never below {:?}",
            shortest[at]
        );
    }
}

#[tokio::test(start_paused = true)]
async fn no_run_starts_after_within_and_no_pause_goes_past_it() {
    let within = Duration::from_secs(2);
    let mut last = Duration::ZERO;
    for _ in 0..50 {
        let since = Instant::now();
        let (starts, error) = starts(options().times(1000).within(within), Duration::from_millis(300)).await;
        let begun = starts.last().unwrap().duration_since(since);
        assert!(
            begun <= within + Duration::from_millis(1),
            "a run began after {begun:?}"
        );
        assert!(
            since.elapsed() <= begun + Duration::from_millis(301),
            "a pause followed the last run"
        );
        assert_eq!(error.tries, u32::try_from(starts.len()).ok());
        last = last.max(begun);
    }
    assert!(last > Duration::from_millis(1700), "the time is used: {last:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_going_on_is_not_stopped() {
    let slow = retry(options().within(Duration::from_secs(1)), async || {
        sleep(Duration::from_secs(5)).await;
        Ok::<_, StaleVersion>(1)
    });
    assert_eq!(slow.await.unwrap(), 1);
    let (starts, error) = starts(options().within(Duration::from_secs(1)), Duration::from_secs(5)).await;
    assert_eq!((starts.len(), error.tries), (1, Some(1)));
}

#[tokio::test(start_paused = true)]
async fn the_defaults_are_five_runs_within_ten_seconds() {
    let (runs, _) = starts(RetryOptions::new(), Duration::ZERO).await;
    assert_eq!(runs.len(), 5);
    let (runs, _) = starts(RetryOptions::new(), Duration::from_secs(6)).await;
    assert_eq!(runs.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_is_dropped_runs_no_more() {
    let runs = Runs::default();
    let endless = retry(options().times(u32::MAX).within(Duration::MAX), async || {
        runs.begin();
        sleep(Duration::from_millis(1)).await;
        Err::<(), _>(stale())
    });
    assert!(
        tokio::time::timeout(Duration::from_secs(1), endless)
            .await
            .is_err()
    );
    let count = runs.count();
    assert!(count > 3, "{count}");
    sleep(Duration::from_secs(10)).await;
    assert_eq!(runs.count(), count);
}

#[test]
#[should_panic(expected = "give it 2 or more")]
fn no_run_at_all_is_refused() {
    let _ = RetryOptions::new().times(0);
}

#[test]
#[should_panic(expected = "swap them")]
fn a_backoff_that_is_upside_down_is_refused() {
    let _ = RetryOptions::new().backoff(LONGEST..FIRST);
}

#[optimistic_retry(times = 3)]
async fn sell(runs: &Runs) -> Result<(), StockError> {
    runs.begin();
    Err(stale().into())
}

#[tokio::test(start_paused = true)]
async fn the_number_of_runs_is_in_the_error() {
    let runs = Runs::default();
    let error = sell(&runs).await.unwrap_err();
    assert_eq!(runs.count(), 3);
    assert!(matches!(&error, StockError::Stale(stale) if stale.tries == Some(3)));
    assert!(error.to_string().ends_with("(given up after 3 tries)"), "{error}");
}
