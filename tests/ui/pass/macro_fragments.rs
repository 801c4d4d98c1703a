//! Fragments of `macro_rules!` macros, which arrive in invisible groups, in the place of every value.

use std::time::Duration;

use dblock::{LockManager, distributed_lock, optimistic_retry, run_once};
use dblock_ui_tests::{OrderError, StockError};
use sqlx::{Postgres, Transaction};

macro_rules! lock {
    ($name:ident, $locks:ident, $key:expr, $ttl:expr, $wait:expr, $renew:expr, $lost:expr, $manager:expr, $busy:expr, $krate:path) => {
        #[distributed_lock(
            key = $key, ttl = $ttl, wait = $wait, renew = $renew, on_lost = $lost, manager = $manager, on_busy = $busy,
            crate = $krate
        )]
        pub async fn $name(id: u64, $locks: &LockManager) -> Result<u64, OrderError> {
            Ok(id)
        }
    };
}

lock!(from_texts, locks, "order:{id}", "30s", "5s", true, "signal", locks, Ok(0), ::dblock);
lock!(for_ever, locks, "order", Duration::from_secs(5), "forever", 1 + 1 == 2, "cancel", &locks, Ok(1 + 1), dblock);

macro_rules! lock_all {
    ($name:ident, $keys:expr, $first:expr) => {
        #[distributed_lock(keys = $keys)]
        #[distributed_lock(keys = [$first, "order:{id}"])]
        pub async fn $name(id: u64) -> Result<u64, OrderError> {
            Ok(id)
        }
    };
}

lock_all!(several, ["a:{id}", "b"], "c:{id}");

macro_rules! once {
    ($name:ident, $id:ident, $remember:expr, $crash:expr, $attempts:expr, $print:expr, $ty:ty) => {
        #[run_once(key = "pay:{id}", remember = $remember, on_crash = $crash, max_attempts = $attempts, fingerprint = $print)]
        pub async fn $name($id: $ty) -> Result<$ty, OrderError> {
            Ok($id)
        }
    };
}

once!(run, id, "1h", "retry", 3, id, u64);

macro_rules! retried {
    ($name:ident, $times:expr, $backoff:expr, $within:expr, $result:ty) => {
        #[optimistic_retry(times = $times, backoff = $backoff, within = $within)]
        pub async fn $name(id: u64) -> $result {
            Ok(id)
        }
    };
}

retried!(retry, 3, "10ms..20ms", "1s", Result<u64, StockError>);

macro_rules! in_transaction {
    ($name:ident, $tx:expr, $t:ty) => {
        #[distributed_lock(key = "order", tx = $tx)]
        pub async fn $name(tx: $t) -> Result<(), OrderError> {
            drop(sqlx::query("SELECT 1").execute(&mut **tx).await);
            Ok(())
        }
    };
}

in_transaction!(settle, tx, &mut Transaction<'_, Postgres>);
