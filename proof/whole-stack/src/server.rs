//! The database's side: the memory store, the wake-ups that it has to send, and its answers beside those of the rules.

use std::slice;
use std::time::Duration;

use dblock::store::clock::Timestamp;
use dblock::store::rules::carry_out;
use dblock::store::{Acquire, Action, MemoryStore, Outcome, Request, Store as _, StoreError, WakeUp};
use dblock::{Key, LockRow};
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
        let key = &request.key;
        let before = self.row(key);
        let mut row = before.unwrap_or_else(|| LockRow::new(key.clone(), Timestamp::EPOCH));
        let tells = carry_out(request, &mut row).ok().and_then(|done| done.tells);
        let answers = self.rows.apply(slice::from_ref(request)).now_or_never();
        let answer = answers
            .and_then(|answers| answers.into_iter().next())
            .expect(AT_ONCE);
        // The store's own row has the token of a row that was passed on.
        let wakes = match (tells, self.row(key)) {
            (Some(WakeUp::PassedOn { key, .. }), Some(row)) => {
                Some(WakeUp::passed_on(key, row.lease_id, row.fence_token))
            }
            (tells, _) => tells,
        };
        Done { answer, wakes }
    }

    pub(crate) fn row(&self, key: &Key) -> Option<LockRow> {
        let row = self.rows.row(key).now_or_never().expect(AT_ONCE);
        row.expect("it reads its own memory")
    }
}
