//! The log's words about servers.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// The servers that managers of this process have moved to.
static MOVES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Moves;

impl<S: Subscriber> Layer<S> for Moves {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        event.record(&mut Server);
    }
}

struct Server;

impl Visit for Server {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "server" {
            let server = format!("{value:?}").trim_matches('"').to_owned();
            MOVES.lock().unwrap_or_else(PoisonError::into_inner).push(server);
        }
    }
}

/// Notes them from here on.
pub(crate) fn note() {
    // Another test of this process may have done so.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Moves));
}

/// How often a manager has moved to the server of this URL.
pub(crate) fn to(url: &str) -> usize {
    let moves = MOVES.lock().unwrap_or_else(PoisonError::into_inner);
    moves
        .iter()
        .filter(|server| url.contains(&format!("@{server}/")))
        .count()
}
