//! A store that is broken on purpose, by one flaw at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::store::{
    Acquire, Action, Capabilities, Extend, MemoryStore, NEXT_TTL, Outcome, Released, Request, Store,
    StoreError, StoreErrorKind, StoreFuture, WakeUp, rules,
};
use dblock::{InspectFilter, Key, LockRow};
use dblock_tests::telling_store::TellingStore;
use tokio::sync::broadcast;
use tokio::time::Instant;
use uuid::Uuid;

use super::flaw::Flaw;

/// When a store that hangs does so.
const HANGS_AFTER: Duration = Duration::from_secs(1);

/// The store of one process.
#[derive(Debug)]
pub(super) struct BrokenStore {
    shared: Arc<Shared>,
    /// The rows. Each process has a session of its own.
    inner: Arc<dyn Store>,
    slot: usize,
    listens: bool,
}

#[derive(Debug)]
struct Shared {
    flaw: Flaw,
    start: Instant,
    /// Counts requests, for flaws that show at every nth.
    requests: AtomicU64,
    last_token: Mutex<i64>,
    /// The last lease that was told falsely that it is the successor.
    twin: Mutex<Option<(Key, Uuid)>>,
    false_wake_ups: broadcast::Sender<WakeUp>,
}

impl BrokenStore {
    /// The stores of several processes, over the same rows. The last one cannot listen, unless the flaw needs
    /// three listeners: the holder, the successor, and a second successor.
    pub(super) fn of_slots(flaw: Flaw, slots: usize, open: &dyn Fn() -> Arc<dyn Store>) -> Vec<Arc<Self>> {
        let shared = Arc::new(Shared {
            flaw,
            start: Instant::now(),
            requests: AtomicU64::new(0),
            last_token: Mutex::new(i64::MAX / 2),
            twin: Mutex::default(),
            false_wake_ups: broadcast::Sender::new(100),
        });
        let store = |slot| {
            Arc::new(Self {
                inner: open(),
                shared: Arc::clone(&shared),
                slot,
                listens: slot + 1 < slots || flaw == Flaw::PassesOnTwice,
            })
        };
        (0..slots).map(store).collect()
    }
}

/// The rows of a store in memory, for a flaw.
pub(super) fn in_memory(flaw: Flaw) -> Arc<dyn Store> {
    if flaw.tells() {
        Arc::new(TellingStore::new())
    } else {
        Arc::new(MemoryStore::new())
    }
}

impl BrokenStore {
    fn every(&self, nth: u64) -> bool {
        self.shared.requests.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
    }

    async fn honest(&self, request: Request) -> Result<Outcome, StoreError> {
        let mut answers = self.inner.apply(std::slice::from_ref(&request)).await;
        answers.remove(0)
    }

    /// A request for the same key, with this lease and action.
    async fn also(&self, request: &Request, lease_id: Uuid, action: Action) -> Result<Outcome, StoreError> {
        let key = request.key.clone();
        self.honest(Request::new(key, lease_id, action)).await
    }

    async fn row(&self, key: &Key) -> Result<Option<LockRow>, StoreError> {
        let filter = InspectFilter::new().prefix(key.as_str()).include_free();
        let rows = self.inner.inspect(&filter).await?;
        Ok(rows.into_iter().find(|row| row.key == *key))
    }

    async fn one(&self, request: &Request) -> Result<Outcome, StoreError> {
        match (&request.action, self.shared.flaw) {
            (_, Flaw::Hangs) if self.shared.start.elapsed() > HANGS_AFTER => std::future::pending().await,
            (Action::Acquire(ask), _) => self.acquire(request, ask.clone()).await,
            (Action::Release, _) => self.release(request).await,
            (Action::Extend(ask), Flaw::RevivesExpired) => {
                let answer = self.honest(request.clone()).await?;
                Ok(if answer == Outcome::Lost {
                    Outcome::extended(ask.ttl)
                } else {
                    answer
                })
            }
            _ => self.honest(request.clone()).await,
        }
    }

    async fn release(&self, request: &Request) -> Result<Outcome, StoreError> {
        match self.shared.flaw {
            Flaw::ReleasesLate => return self.keep(request, Duration::from_millis(6_800)).await,
            Flaw::KeepsReleased if self.every(20) => {
                return self.keep(request, Duration::from_hours(1)).await;
            }
            Flaw::PassesOnToTheDead => self.let_a_ghost_be_next(request).await?,
            _ => {}
        }
        let answer = self.honest(request.clone()).await?;
        match answer {
            Outcome::Lost if self.shared.flaw == Flaw::ReleasesAnyLease => {
                self.inner.force_release(&request.key).await?;
            }
            Outcome::Released(Released::PassedOn) if self.shared.flaw == Flaw::PassesOnTwice => {
                self.pass_on_again(&request.key).await?;
            }
            _ => {}
        }
        Ok(answer)
    }

    /// Confirms a release, and makes the lease last for so long instead.
    async fn keep(&self, request: &Request, ttl: Duration) -> Result<Outcome, StoreError> {
        let extend = Action::Extend(Extend::new(1, ttl));
        self.also(request, request.lease_id, extend).await?;
        Ok(Outcome::Released(Released::Freed))
    }

    /// Replaces the successor, if there is one, by a lease that nobody has.
    async fn let_a_ghost_be_next(&self, request: &Request) -> Result<(), StoreError> {
        let next = self.row(&request.key).await?.and_then(|row| row.next);
        if let Some(next) = next {
            self.also(request, next.lease_id, Action::Release).await?;
            let mut ask = Acquire::new(Uuid::now_v7(), NEXT_TTL, "a process that died");
            (ask.wanted_for, ask.queue) = (Some(NEXT_TTL), Some(NEXT_TTL));
            self.also(request, Uuid::now_v7(), Action::Acquire(ask)).await?;
        }
        Ok(())
    }

    /// Tells a waiter that is not the successor that the row was passed on to it, with the successor's token.
    async fn pass_on_again(&self, key: &Key) -> Result<(), StoreError> {
        let twin = self.shared.twin.lock().unwrap().take();
        if let (Some((key, lease_id)), Some(row)) =
            (twin.filter(|(twin, _)| twin == key), self.row(key).await?)
        {
            let fence_token = row.fence_token;
            let _ = self
                .shared
                .false_wake_ups
                .send(WakeUp::passed_on(key, lease_id, fence_token));
        }
        Ok(())
    }

    async fn acquire(&self, request: &Request, mut ask: Acquire) -> Result<Outcome, StoreError> {
        let said = ask.ttl;
        match self.shared.flaw {
            Flaw::RevivesExpired => ask.ttl /= 10,
            Flaw::ReleasesAnyLease if self.every(10) => {
                return Err(StoreError::new(StoreErrorKind::Interrupted, "the reply was lost"));
            }
            Flaw::ForgetsWaiters if self.slot == 0 && ask.wanted_for.is_some() => {
                if let Some(row) = self.row(&request.key).await? {
                    return Ok(Outcome::Busy(rules::holder(&row)));
                }
            }
            _ => {}
        }
        let waits = ask.queue.is_some();
        let request = Request::new(request.key.clone(), request.lease_id, Action::Acquire(ask));
        let mut answer = self.honest(request.clone()).await?;
        match (&mut answer, self.shared.flaw) {
            (Outcome::Busy(_) | Outcome::Queued { .. }, Flaw::GrantsWhileHeld | Flaw::LosesMoney)
                if self.shared.flaw == Flaw::GrantsWhileHeld && self.every(3)
                    || self.shared.flaw == Flaw::LosesMoney
                        && request.key.as_str().starts_with("account") =>
            {
                self.inner.force_release(&request.key).await?;
                answer = self.honest(request.clone()).await?;
            }
            (Outcome::Busy(holder), Flaw::PassesOnTwice) if waits => {
                *self.shared.twin.lock().unwrap() = Some((request.key.clone(), request.lease_id));
                answer = Outcome::queued(holder.clone(), said.min(NEXT_TTL));
            }
            (Outcome::Granted { fence_token, .. }, Flaw::CoarseTokens) => *fence_token /= 1_000_000,
            (Outcome::Granted { fence_token, .. }, Flaw::FallingTokens) => {
                let mut last = self.shared.last_token.lock().unwrap();
                *last -= 1_000;
                *fence_token = *last;
            }
            (Outcome::Granted { remaining, .. }, Flaw::RevivesExpired) => *remaining = said,
            (Outcome::Granted { .. }, Flaw::LosesCommits) if self.every(3) => {
                self.inner.force_release(&request.key).await?;
            }
            _ => {}
        }
        Ok(answer)
    }
}

impl Store for BrokenStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn apply<'a>(&'a self, requests: &'a [Request]) -> StoreFuture<'a, Vec<Result<Outcome, StoreError>>> {
        Box::pin(async move {
            let mut answers = Vec::new();
            for request in requests {
                answers.push(self.one(request).await);
            }
            answers
        })
    }

    fn listen<'a>(&'a self, tell: &'a (dyn Fn(WakeUp) + Send + Sync)) -> StoreFuture<'a, StoreError> {
        if !self.listens {
            let error = StoreError::new(StoreErrorKind::Unsupported, "a pooler is in between");
            return Box::pin(async { error });
        }
        Box::pin(async move {
            let mut false_wake_ups = self.shared.false_wake_ups.subscribe();
            let lie = async {
                while let Ok(wake_up) = false_wake_ups.recv().await {
                    tell(wake_up);
                }
                std::future::pending().await
            };
            tokio::select! {
                ended = self.inner.listen(tell) => ended,
                never = lie => never,
            }
        })
    }

    dblock_conformance::forward_to_inner!(but listen);
}
