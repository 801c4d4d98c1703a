//! The live part: a page's fragment is sent anew about once a second.
//!
//! Readers of the same page share what was read. All of them together ask the store one thing at a time, and
//! leave it alone for nine times as long as it took to answer.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use dblock::LockError;
use futures_util::stream;
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until};

use crate::page::Page;
use crate::pages::{Failure, dated, key, list, records};

/// How often a fragment is sent.
const EVERY: Duration = Duration::from_secs(1);

/// The store rests for so many times as long as its last answer took.
const REST: u32 = 9;

/// How many readers there may be.
const READERS: usize = 100;

/// A page that is live.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum View {
    List(list::Asked),
    Key(key::Asked),
    Records(records::Asked),
}

#[derive(Debug)]
pub(crate) struct Live {
    page: Arc<Page>,
    shared: Mutex<Shared>,
    readers: Arc<Semaphore>,
}

/// The fragments that were read last.
#[derive(Debug)]
struct Shared {
    fragments: HashMap<View, (Instant, String)>,
    /// The store rests until then.
    rest: Instant,
}

impl Live {
    pub(crate) fn new(page: Arc<Page>) -> Self {
        Self {
            page,
            shared: Mutex::new(Shared {
                fragments: HashMap::new(),
                rest: Instant::now(),
            }),
            readers: Arc::new(Semaphore::new(READERS)),
        }
    }
}

pub(crate) async fn list(State(live): State<Arc<Live>>, Query(asked): Query<list::Asked>) -> Response {
    events(live, View::List(asked))
}

pub(crate) async fn key(State(live): State<Arc<Live>>, Query(asked): Query<key::Asked>) -> Response {
    events(live, View::Key(asked))
}

pub(crate) async fn records(State(live): State<Arc<Live>>, Query(asked): Query<records::Asked>) -> Response {
    events(live, View::Records(asked))
}

fn events(live: Arc<Live>, view: View) -> Response {
    let Ok(reader) = Arc::clone(&live.readers).try_acquire_owned() else {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many readers of the live part",
        )
            .into_response();
    };
    let events = stream::unfold((live, view, reader), next);
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

type Reader = (Arc<Live>, View, OwnedSemaphorePermit);

/// The next event. The stream ends when the manager is shut down, so that a server that waits for its
/// connections can stop.
async fn next((live, view, reader): Reader) -> Option<(Result<Event, Infallible>, Reader)> {
    sleep(EVERY).await;
    let event = match live.read(&view).await {
        Ok(fragment) => Event::default().event("fragment").data(fragment),
        Err(error) if error.is_shutdown() => return None,
        Err(error) => Event::default()
            .event("failure")
            .data(Failure::from(error).text()),
    };
    Some((Ok(event), (live, view, reader)))
}

impl Live {
    async fn read(&self, view: &View) -> Result<String, LockError> {
        let mut shared = self.shared.lock().await;
        shared.fragments.retain(|_, (since, _)| since.elapsed() < EVERY);
        if let Some((_, fragment)) = shared.fragments.get(view) {
            return Ok(fragment.clone());
        }
        sleep_until(shared.rest).await;
        let begin = Instant::now();
        let fragment = match view {
            View::List(asked) => list::fragment(&self.page, asked).await,
            View::Key(asked) => key::fragment(&self.page, asked).await,
            View::Records(asked) => records::fragment(&self.page, asked).await,
        };
        shared.rest = Instant::now() + begin.elapsed() * REST;
        let fragment = dated(&fragment?).into_string();
        shared.fragments.insert(view.clone(), (begin, fragment.clone()));
        Ok(fragment)
    }
}
