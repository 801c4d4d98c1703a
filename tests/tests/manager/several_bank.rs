//! Transfers between accounts, each under the locks of both, from several processes in any order: none waits
//! for another in a circle, and no money is lost.

use std::sync::{Arc, Mutex};

use dblock::{LockManager, current, distributed_lock};
use dblock_tests::backend::Place;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use fastrand::Rng;
use futures_util::future::join_all;
use sqlx::AssertSqlSafe;

on_every_store!(transfers_in_any_order_end_and_lose_nothing);

const PROCESSES: usize = 4;
const TASKS: usize = 32;
const TRANSFERS: usize = 8;
const ACCOUNTS: usize = 6;
const OPENED_WITH: i64 = 1_000;

struct Bank {
    locks: LockManager,
    backend: Backend,
    /// Where the store has no tables for them.
    accounts: Arc<Mutex<[i64; ACCOUNTS]>>,
}

type Failed = Box<dyn std::error::Error + Send + Sync>;

impl Bank {
    async fn open(&self) {
        if !matches!(self.backend.place(), Place::Memory(_)) {
            let all: Vec<_> = (0..ACCOUNTS).map(|id| format!("({id}, {OPENED_WITH})")).collect();
            let create = "CREATE TABLE {table}_account (id INT PRIMARY KEY, balance BIGINT NOT NULL)";
            self.backend.execute(create).await;
            self.backend
                .execute(&format!(
                    "INSERT INTO {{table}}_account VALUES {}",
                    all.join(", ")
                ))
                .await;
        }
    }

    async fn balance(&self, account: usize) -> i64 {
        let read = AssertSqlSafe(format!(
            "SELECT balance FROM {}_account WHERE id = {account}",
            self.backend.table
        ));
        let balance = match self.backend.place() {
            Place::Postgres(pool, _) => sqlx::query_scalar(read).fetch_one(pool).await,
            Place::MySql(pool, _) => sqlx::query_scalar(read).fetch_one(pool).await,
            Place::Sqlite(pool, _) => sqlx::query_scalar(read).fetch_one(pool).await,
            Place::Memory(_) => Ok(self.accounts.lock().unwrap()[account]),
        };
        balance.unwrap()
    }

    async fn write(&self, balances: [(usize, i64); 2]) -> Result<(), Failed> {
        if matches!(self.backend.place(), Place::Memory(_)) {
            for (account, balance) in balances {
                self.accounts.lock().unwrap()[account] = balance;
            }
            return Ok(());
        }
        let mut transaction = Transaction::begin(&self.backend).await;
        transaction.verify_current(&current().unwrap()).await?;
        for (account, balance) in balances {
            let table = &self.backend.table;
            let write = format!("UPDATE {table}_account SET balance = {balance} WHERE id = {account}");
            transaction.execute(write).await;
        }
        transaction.commit().await;
        Ok(())
    }

    #[distributed_lock(keys = ["account:{from}", "account:{to}"], wait = "forever", manager = self.locks)]
    async fn transfer(&self, from: usize, to: usize, amount: i64) -> Result<(), Failed> {
        let (source, target) = (self.balance(from).await, self.balance(to).await);
        tokio::task::yield_now().await;
        self.write([(from, source - amount), (to, target + amount)]).await
    }
}

async fn transfers_in_any_order_end_and_lose_nothing(backend: Backend) {
    let accounts = Arc::new(Mutex::new([OPENED_WITH; ACCOUNTS]));
    let mut banks = Vec::new();
    for _ in 0..PROCESSES {
        banks.push(Arc::new(Bank {
            locks: backend.manager().await,
            backend: backend.clone(),
            accounts: Arc::clone(&accounts),
        }));
    }
    banks[0].open().await;
    let tasks = (0..TASKS).map(|task| {
        let bank = Arc::clone(&banks[task % PROCESSES]);
        tokio::spawn(async move {
            let mut rng = Rng::with_seed(task as u64);
            for _ in 0..TRANSFERS {
                let (from, to) = (rng.usize(..ACCOUNTS), rng.usize(..ACCOUNTS - 1));
                let to = if to == from { ACCOUNTS - 1 } else { to };
                bank.transfer(from, to, rng.i64(1..100)).await.unwrap();
            }
        })
    });
    for ended in join_all(tasks).await {
        ended.unwrap();
    }
    let balances = join_all((0..ACCOUNTS).map(|account| banks[0].balance(account))).await;
    let sum: i64 = balances.iter().sum();
    assert_eq!(sum, OPENED_WITH * 6, "{balances:?}");
    assert!(balances.iter().any(|balance| *balance != OPENED_WITH));
    if !matches!(backend.place(), Place::Memory(_)) {
        backend.execute("DROP TABLE {table}_account").await;
    }
}
