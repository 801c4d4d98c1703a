//! The database's side: the memory store, with wake-ups.

use std::time::Duration;

use dblock::store::{Acquire, Action, MemoryStore, Outcome, Request, Store as _, StoreError, WakeUp};
use dblock::{Key, LockRow, open};
use futures_util::FutureExt as _;
use uuid::Uuid;

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) rows: MemoryStore,
    /// The token of a lease that was granted before the run.
    pub(crate) first_token: i64,
}

/// What a request has done.
pub(crate) struct Done {
    pub(crate) answer: Result<Outcome, StoreError>,
    pub(crate) wakes: Option<WakeUp>,
}

const AT_ONCE: &str = "the memory store answers at once";

impl Server {
    pub(crate) fn new() -> Self {
        let mut server = Self {
            rows: MemoryStore::new(),
            first_token: 0,
        };
        let key = Key::new(None, "first").expect("a short word is a key");
        let ask = Acquire::new(Uuid::nil(), Duration::from_secs(1), "nobody");
        let request = Request::new(key, Uuid::max(), Action::Acquire(ask));
        if let Ok(Outcome::Granted { fence_token, .. }) = server.carry_out(&request).answer {
            server.first_token = fence_token;
        }
        server
    }

    pub(crate) fn carry_out(&self, request: &Request) -> Done {
        match open::memory::apply(&self.rows, request) {
            Ok((outcome, wakes)) => Done {
                answer: Ok(outcome),
                wakes,
            },
            Err(error) => Done {
                answer: Err(error),
                wakes: None,
            },
        }
    }

    pub(crate) fn row(&self, key: &Key) -> Option<LockRow> {
        let row = self.rows.row(key).now_or_never().expect(AT_ONCE);
        row.expect("it reads its own memory")
    }
}
