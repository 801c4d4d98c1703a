//! A store in memory that is broken on purpose, in one way at a time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dblock::Key;
use dblock::store::memory::MemoryStore;
use dblock::store::{
    Action, Capabilities, InspectFilter, LockRow, Outcome, Request, Store, StoreError, StoreErrorKind,
    StoreFuture,
};

/// How a store can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// It is not.
    None,
    /// Every tenth acquire is granted whoever holds the key.
    GrantsWhileHeld,
    /// A release frees the key whichever lease holds it. Some acquires fail, whose leases are then released
    /// although they were never granted.
    ReleasesAnyLease,
    /// Tokens are seconds.
    CoarseTokens,
    /// Tokens count down.
    FallingTokens,
    /// A lease ends sooner than was said, and a renewal brings it back to life.
    RevivesExpired,
    /// A release is confirmed and carried out only seconds later.
    ReleasesLate,
    /// Every twentieth release is confirmed, and makes the lease last.
    KeepsReleased,
    /// Every third grant is forgotten, as by a failover that loses commits.
    LosesCommits,
}

#[derive(Debug)]
pub(super) struct BrokenStore {
    inner: MemoryStore,
    flaw: Flaw,
    /// Counts what is done now and then only.
    turn: AtomicU64,
    last_token: Mutex<i64>,
}

impl BrokenStore {
    pub(super) fn new(flaw: Flaw) -> Self {
        Self {
            inner: MemoryStore::new(),
            flaw,
            turn: AtomicU64::new(0),
            last_token: Mutex::new(i64::MAX / 2),
        }
    }

    fn every(&self, nth: u64) -> bool {
        self.turn.fetch_add(1, Ordering::Relaxed) % nth == nth - 1
    }

    async fn honest(&self, request: Request) -> Result<Outcome, StoreError> {
        let mut answers = self.inner.apply(std::slice::from_ref(&request)).await;
        answers.remove(0)
    }

    async fn one(&self, request: &Request) -> Result<Outcome, StoreError> {
        match (&request.action, self.flaw) {
            (Action::Acquire { .. }, _) => self.acquire(request).await,
            (Action::Release, Flaw::ReleasesLate) => self.keep(request, Duration::from_millis(6_800)).await,
            (Action::Release, Flaw::KeepsReleased) if self.every(20) => {
                self.keep(request, Duration::from_hours(1)).await
            }
            (Action::Release, Flaw::ReleasesAnyLease) => {
                let answer = self.honest(request.clone()).await?;
                if answer == Outcome::Lost {
                    self.inner.force_release(&request.key).await?;
                }
                Ok(answer)
            }
            (Action::Extend { ttl, .. }, Flaw::RevivesExpired) => {
                let answer = self.honest(request.clone()).await?;
                Ok(if answer == Outcome::Lost {
                    Outcome::Extended {
                        remaining: *ttl,
                        revoked: false,
                        wanted: false,
                    }
                } else {
                    answer
                })
            }
            _ => self.honest(request.clone()).await,
        }
    }

    /// Confirms a release, and makes the lease last for so long instead.
    async fn keep(&self, request: &Request, ttl: Duration) -> Result<Outcome, StoreError> {
        let action = Action::Extend {
            count: 1,
            ttl,
            successor: None,
        };
        let keep = Request {
            action,
            ..request.clone()
        };
        self.honest(keep).await?;
        Ok(Outcome::Released {
            freed: true,
            wanted: false,
        })
    }

    async fn acquire(&self, request: &Request) -> Result<Outcome, StoreError> {
        let mut request = request.clone();
        let Action::Acquire { ttl, .. } = &mut request.action else {
            unreachable!("only acquires come here")
        };
        let said = *ttl;
        if self.flaw == Flaw::RevivesExpired {
            *ttl /= 10;
        }
        if self.flaw == Flaw::ReleasesAnyLease && self.every(10) {
            return Err(StoreError::new(StoreErrorKind::Interrupted, "the reply was lost"));
        }
        let mut answer = self.honest(request.clone()).await?;
        if self.flaw == Flaw::GrantsWhileHeld && matches!(answer, Outcome::Busy(_)) && self.every(10) {
            self.inner.force_release(&request.key).await?;
            answer = self.honest(request.clone()).await?;
        }
        if let Outcome::Granted {
            fence_token,
            remaining,
            ..
        } = &mut answer
        {
            match self.flaw {
                Flaw::CoarseTokens => *fence_token /= 1_000_000,
                Flaw::FallingTokens => {
                    let mut last = self.last_token.lock().unwrap();
                    *last -= 1_000;
                    *fence_token = *last;
                }
                Flaw::RevivesExpired => *remaining = said,
                Flaw::LosesCommits if self.every(3) => {
                    self.inner.force_release(&request.key).await?;
                }
                _ => {}
            }
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

    fn check_schema(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.inner.check_schema()
    }

    fn migrate(&self) -> StoreFuture<'_, Result<(), StoreError>> {
        self.inner.migrate()
    }

    fn inspect<'a>(&'a self, filter: &'a InspectFilter) -> StoreFuture<'a, Result<Vec<LockRow>, StoreError>> {
        self.inner.inspect(filter)
    }

    fn revoke<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        self.inner.revoke(key)
    }

    fn force_release<'a>(&'a self, key: &'a Key) -> StoreFuture<'a, Result<bool, StoreError>> {
        self.inner.force_release(key)
    }

    fn close(&self) -> StoreFuture<'_, ()> {
        self.inner.close()
    }
}
