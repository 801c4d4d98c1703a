//! Shows on a terminal that something takes long.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Below this nobody wonders what is going on.
const PATIENCE: Duration = Duration::from_secs(2);

/// Awaits `work`. After two seconds says on stderr what it is doing and for how long, if that is a terminal.
pub(crate) async fn during<T>(what: &str, work: impl Future<Output = T>) -> T {
    during_seen(what, async || None, work).await
}

/// As [`during`]. Behind `what` it says what `seen` tells, and asks that again every two seconds.
pub(crate) async fn during_seen<T>(
    what: &str,
    seen: impl AsyncFn() -> Option<String>,
    work: impl Future<Output = T>,
) -> T {
    let mut work = pin!(work);
    if let Ok(done) = tokio::time::timeout(PATIENCE, &mut work).await {
        return done;
    }
    // It draws nothing unless stderr is a terminal.
    let shown = ProgressBar::new_spinner().with_elapsed(PATIENCE);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
        shown.set_style(style);
    }
    shown.set_message(what.to_owned());
    shown.enable_steady_tick(Duration::from_millis(200));
    // Dropped with the caller's future too, which clears the line.
    let _clears = Clears(&shown);
    let look = async {
        while !shown.is_hidden() {
            let more = seen().await.unwrap_or_default();
            shown.set_message(format!("{what}{more}"));
            tokio::time::sleep(PATIENCE).await;
        }
    };
    tokio::select! {
        biased;
        done = &mut work => done,
        () = look => work.await,
    }
}

struct Clears<'a>(&'a ProgressBar);

impl Drop for Clears<'_> {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
