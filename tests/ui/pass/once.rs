//! Everything that `#[run_once]` accepts.

use std::time::{Duration, SystemTime};

use dblock::{LockManager, Once, RunError, run_once};
use dblock_ui_tests::{OrderError, send};
use serde::{Deserialize, Serialize};

#[derive(Serialize)]
struct Withdrawal {
    id: u64,
    cents: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt(u64);

struct Payments {
    locks: LockManager,
}

const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);

impl Payments {
    #[run_once(
        key = "pay:{order.id}", remember = MONTH, fingerprint = order, on_crash = "stop", max_attempts = 3,
        backoff = "10s", ttl = "10s", wait = "1s", renew = true, max_hold = "1m", manager = self.locks
    )]
    async fn pay(&self, order: &Withdrawal) -> Result<Receipt, OrderError> {
        assert_eq!(dblock::current_run().unwrap().attempt(), 1);
        Ok(Receipt(order.cents))
    }

    #[run_once(key = "mail:{id}", remember = "365d", on_crash = "retry", manager = self.locks)]
    #[dblock::distributed_lock(key = "outbox", manager = self.locks)]
    async fn mail(&self, id: u64) -> Result<Once<()>, OrderError> {
        assert_eq!(dblock::current_locks().len(), 2);
        if id == 0 {
            return Err(OrderError::Unknown(id));
        }
        Ok(Once::Ran(()))
    }

    #[run_once(key = "count:{id}", remember = "1h", on_crash = "complete_in", on_busy = Ok(None), manager = self.locks)]
    async fn count(&self, id: u64) -> Result<Option<u64>, OrderError> {
        Ok(Some(id))
    }

    #[run_once(key = "nightly:{night}", remember = "365d", on_crash = "retry", tick = tick, manager = self.locks)]
    async fn nightly(&self, night: u32, tick: SystemTime) -> Result<(), OrderError> {
        Ok(())
    }
}

#[run_once(key = "default", remember = "1h", on_crash = "retry", on_error = |error| Err(error.to_string()))]
async fn by_default() -> Result<(), String> {
    Ok(())
}

#[tokio::test]
async fn outcomes_are_remembered() {
    let payments = Payments { locks: LockManager::connect("memory:").await.unwrap() };
    let order = Withdrawal { id: 1, cents: 500 };
    assert_eq!(send(payments.pay(&order)).await.unwrap(), Receipt(500));
    assert_eq!(payments.pay(&order).await.unwrap(), Receipt(500));
    let other = payments.pay(&Withdrawal { id: 1, cents: 501 }).await.unwrap_err();
    assert!(matches!(
        other,
        OrderError::Lock(dblock::LockError::Run { reason: RunError::KeyReused, .. })
    ));
    assert!(payments.mail(0).await.is_err());
    assert_eq!(payments.mail(1).await.unwrap(), Once::Ran(()));
    assert_eq!(payments.mail(1).await.unwrap(), Once::Replayed(()));
    // The body has not called `complete_in`.
    assert!(matches!(
        payments.count(7).await.unwrap_err(),
        OrderError::Lock(dblock::LockError::Run { reason: RunError::NotCompleted, .. })
    ));
    payments.nightly(1, SystemTime::now()).await.unwrap();
    let old = payments.nightly(2, SystemTime::UNIX_EPOCH).await.unwrap_err();
    assert!(matches!(
        old,
        OrderError::Lock(dblock::LockError::Run { reason: RunError::TickTooOld { .. }, .. })
    ));
    assert_eq!(by_default().await.unwrap_err().contains("no lock manager"), true);
    payments.locks.scope(by_default()).await.unwrap();
}
