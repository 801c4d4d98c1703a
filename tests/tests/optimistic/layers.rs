//! The two attributes on one function: the topmost is the outermost.

use std::sync::Mutex;

use dblock::optimistic::{RetryOptions, StaleVersion, retry};
use dblock::store::{MemoryStore, StoreErrorKind};
use dblock::{LockError, LockManager, distributed_lock, optimistic_retry};
use dblock_tests::faulty_store::{Fault, FaultyStore, Kind};

use crate::{Runs, StockError};

struct Shop {
    locks: LockManager,
    runs: Runs,
    /// The token under which each run ran.
    tokens: Mutex<Vec<i64>>,
}

impl Shop {
    fn new(locks: LockManager) -> Self {
        Self {
            locks,
            runs: Runs::default(),
            tokens: Mutex::default(),
        }
    }

    #[distributed_lock(key = "stock:{id}", manager = self.locks)]
    #[optimistic_retry(times = 3, backoff = "1ms..1ms")]
    async fn lock_outside(&self, id: u64) -> Result<u32, StockError> {
        self.body(id)
    }

    #[optimistic_retry(times = 3, backoff = "1ms..1ms")]
    #[distributed_lock(key = "stock:{id}", manager = self.locks)]
    async fn retry_outside(&self, id: u64) -> Result<u32, StockError> {
        self.body(id)
    }

    /// The first two runs meet a conflict.
    fn body(&self, id: u64) -> Result<u32, StockError> {
        let lock = dblock::current().unwrap();
        assert_eq!(lock.key(), format!("stock:{id}"));
        self.tokens.lock().unwrap().push(lock.fence_token());
        match self.runs.begin() {
            run @ 1..3 => Err(StaleVersion::new("stock", id, run).into()),
            run => Ok(run),
        }
    }

    fn tokens(&self) -> Vec<i64> {
        self.tokens.lock().unwrap().clone()
    }
}

async fn memory() -> LockManager {
    LockManager::builder(MemoryStore::new()).build().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_above_the_retry_is_kept_over_all_runs() {
    let shop = Shop::new(memory().await);
    assert_eq!(shop.lock_outside(42).await.unwrap(), 3);
    let tokens = shop.tokens();
    assert_eq!(tokens, [tokens[0]; 3], "one lease");
    assert!(!shop.locks.admin().is_locked("stock:42").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lock_below_the_retry_is_acquired_for_each_run() {
    let shop = Shop::new(memory().await);
    assert_eq!(shop.retry_outside(42).await.unwrap(), 3);
    let tokens = shop.tokens();
    assert!(tokens.is_sorted_by(|a, b| a < b), "three leases: {tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_busy_or_a_store_that_is_down_is_no_conflict() {
    let store = FaultyStore::memory();
    let locks = store.manager();
    let shop = Shop::new(locks.clone());
    let guard = locks.lock("stock:42").acquire().await.unwrap();
    let busy = shop.retry_outside(42).await.unwrap_err();
    assert!(
        matches!(busy, StockError::Lock(LockError::Busy { .. })),
        "{busy:?}"
    );
    guard.release().await.unwrap();
    store.always(Kind::Acquire, Fault::Fail(StoreErrorKind::Refused));
    let down = shop.retry_outside(42).await.unwrap_err();
    assert!(
        matches!(down, StockError::Lock(LockError::Store { .. })),
        "{down:?}"
    );
    assert_eq!(shop.runs.count(), 0);
}

/// The work is done by then. The store's reason for the release must not be taken for the work's.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_not_confirmed_is_no_conflict() {
    for kind in [
        StoreErrorKind::Conflict,
        StoreErrorKind::Interrupted,
        StoreErrorKind::Unreachable,
    ] {
        let store = FaultyStore::memory();
        let locks = store.manager();
        store.always(Kind::Release, Fault::Fail(kind));
        let runs = Runs::default();
        let work = retry(RetryOptions::new(), async || {
            let options = dblock::LockOptions::new();
            let all = locks.lock(["a", "b"]).options(&options).acquire().await?;
            let guard = locks.lock("c").options(&options).acquire().await?;
            // The work, with a commit of its own.
            runs.begin();
            guard.release().await.and(all.release().await)?;
            Ok::<_, StockError>(())
        });
        let StockError::Lock(error) = work.await.unwrap_err() else {
            panic!("another error than the lock's");
        };
        assert_eq!(runs.count(), 1, "{kind:?}: the work was done again");
        assert!(matches!(error, LockError::Unconfirmed { .. }), "{error:?}");
        assert!(!error.is_retryable() && !error.is_store(), "{error:?}");
    }
}
