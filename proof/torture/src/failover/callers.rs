//! Callers that hold and wait, and what they saw.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use dblock::{LockError, LockGuard, LockManager, LockOptions, LostReason};
use fastrand::Rng;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Callers of each manager.
const CALLERS: u64 = 6;

const KEYS: usize = 8;

/// How long a caller waits. Some give up during a fail-over.
const WAITS: std::ops::Range<u64> = 1_000..20_000;

/// A call may take this much longer than its wait: a busy machine wakes it late. A release may take three
/// seconds by itself.
const GRACE: Duration = Duration::from_secs(5);

/// What all callers saw.
#[derive(Debug, Default, Clone)]
pub(super) struct Tally {
    granted: u64,
    timeouts: u64,
    /// Leases that could not be renewed in time: the price of an outage that is longer than the ttl.
    expired: u64,
    /// Releases that the store has not confirmed in time.
    unconfirmed: u64,
    /// Leases that the store did not know any more.
    gone: u64,
    overlaps: u64,
    old_tokens: u64,
    hung: u64,
    /// Errors that no fail-over explains.
    errors: Vec<String>,
}

impl Tally {
    pub(super) fn is_good(&self) -> bool {
        self.gone + self.overlaps + self.old_tokens + self.hung == 0
            && self.errors.is_empty()
            && self.granted > 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} grants; {} waits ran out, {} leases expired, {} releases were not confirmed in time",
            self.granted, self.timeouts, self.expired, self.unconfirmed
        )?;
        write!(
            f,
            "grants lost: {}; two owners at once: {}; tokens that did not grow: {}; callers hung: {}; other errors: {}",
            self.gone,
            self.overlaps,
            self.old_tokens,
            self.hung,
            self.errors.len()
        )?;
        self.errors
            .iter()
            .take(10)
            .try_for_each(|error| write!(f, "\n  {error}"))
    }
}

/// What the callers know of a key.
#[derive(Debug, Default)]
struct Seen {
    latest_token: i64,
    inside: Option<Arc<LockGuard>>,
}

#[derive(Debug, Default)]
struct Shared {
    keys: Mutex<HashMap<String, Seen>>,
    tally: Mutex<Tally>,
}

/// Callers at work.
#[derive(Debug)]
pub(super) struct Callers {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Callers {
    pub(super) fn start(managers: &[LockManager], seed: u64) -> Self {
        let (shared, stop) = (Arc::<Shared>::default(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        for (manager, locks) in (0..).zip(managers) {
            for caller in 0..CALLERS {
                let (shared, locks, stop) = (Arc::clone(&shared), locks.clone(), stop.clone());
                let mut rng = Rng::with_seed(seed + manager * CALLERS + caller + 1);
                tasks.spawn(async move {
                    while !stop.is_cancelled() {
                        shared.call(&locks, &mut rng).await;
                    }
                });
            }
        }
        Self { shared, tasks, stop }
    }

    /// Lets the last calls end.
    pub(super) async fn end(self) -> Tally {
        self.stop.cancel();
        self.tasks.join_all().await;
        self.shared.tally().clone()
    }
}

impl Shared {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call(&self, locks: &LockManager, rng: &mut Rng) {
        let key = format!("key {}", rng.usize(..KEYS));
        let wait = Duration::from_millis(rng.u64(WAITS));
        let ttl = Duration::from_millis(rng.u64(2_000..15_000));
        let options = LockOptions::new().wait(wait).ttl(ttl);
        let Ok(granted) = timeout(wait + GRACE, locks.lock(&*key).options(&options).acquire()).await else {
            self.tally().hung += 1;
            return;
        };
        let guard = match granted {
            Ok(guard) => Arc::new(guard),
            Err(error) => return self.refused(&error),
        };
        self.enter(&key, &guard);
        // One in five may be inside during a whole fail-over.
        let inside = Duration::from_millis(if rng.u8(..5) == 0 {
            rng.u64(500..4_000)
        } else {
            rng.u64(..20)
        });
        tokio::select! {
            () = sleep(inside) => {}
            _ = guard.lost() => {}
        }
        self.leave(&key, &guard);
        let guard = Arc::into_inner(guard).expect("only this call and the key's entry had it");
        match timeout(GRACE, guard.release()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.refused(&error),
            Err(_) => self.tally().hung += 1,
        }
    }

    fn enter(&self, key: &str, guard: &Arc<LockGuard>) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = keys.entry(key.to_owned()).or_default();
        let overlaps = seen.inside.as_ref().is_some_and(|other| !other.is_lost());
        let is_old = guard.fence_token() <= seen.latest_token;
        if overlaps || is_old {
            tell(&format!(
                "{key}: granted with token {} beside {}",
                guard.fence_token(),
                seen.latest_token
            ));
        }
        seen.inside = Some(Arc::clone(guard));
        seen.latest_token = seen.latest_token.max(guard.fence_token());
        drop(keys);
        let mut tally = self.tally();
        tally.granted += 1;
        tally.overlaps += u64::from(overlaps);
        tally.old_tokens += u64::from(is_old);
    }

    fn leave(&self, key: &str, guard: &Arc<LockGuard>) {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = keys.get_mut(key) {
            // Another owner may have entered after this one lost its lease.
            seen.inside = seen.inside.take().filter(|inside| !Arc::ptr_eq(inside, guard));
        }
    }

    fn refused(&self, error: &LockError) {
        let mut tally = self.tally();
        match error {
            LockError::Timeout { .. } => tally.timeouts += 1,
            LockError::Lost {
                reason: LostReason::Expired,
                ..
            } => tally.expired += 1,
            LockError::Lost {
                reason: LostReason::Gone,
                ..
            } => {
                tally.gone += 1;
                tell(&format!("{error:?}"));
            }
            LockError::Unconfirmed { .. } => tally.unconfirmed += 1,
            LockError::Store { source, .. } if source.is_retryable() => tally.unconfirmed += 1,
            other => tally.errors.push(format!("{other:?}")),
        }
    }
}

/// Prints a violation at once, beside the fault of that moment.
fn tell(what: &str) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    eprintln!("    {:.3}: {what}", now.unwrap_or_default().as_secs_f64());
}
