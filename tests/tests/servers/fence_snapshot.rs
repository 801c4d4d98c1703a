//! A transaction that began before its lock was acquired never passes the fence check with what it read then,
//! on any database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use dblock::open::sqlite;
use dblock::store::{
    Acquire, Action, Extend, HandedOver, MySqlStore, Outcome, PostgresStore, Released, Request, Store,
    StoreError, StoreErrorKind,
};
use dblock::{Key, LockError, LockGuard};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Row, on_every_store};
use sqlx::{AssertSqlSafe, MySqlConnection, PgConnection, SqliteConnection};
use uuid::Uuid;

on_every_store!(databases: the_check_passes_for_the_lease_only, a_snapshot_from_before_the_lock_is_a_conflict);
on_every_store!(databases: a_snapshot_from_before_a_local_hand_over_is_a_conflict);
on_every_store!(databases: a_snapshot_from_before_the_keys_first_use_is_a_conflict);
on_every_store!(servers: a_transaction_without_a_snapshot_of_its_own_reads_what_is_there);

const TTL: Duration = Duration::from_mins(1);

/// A connection of the application's.
enum User {
    Postgres(PgConnection),
    MySql(MySqlConnection),
    Sqlite(SqliteConnection),
}

/// The same on whatever connection it is.
macro_rules! on {
    ($user:expr, $connection:ident => $work:expr) => {
        match $user {
            User::Postgres($connection) => $work,
            User::MySql($connection) => $work,
            User::Sqlite($connection) => $work,
        }
    };
}

impl User {
    async fn of(backend: &Backend) -> Self {
        use sqlx::ConnectOptions;
        match backend.place() {
            Place::Postgres(pool, _) => Self::Postgres(pool.connect_options().connect().await.unwrap()),
            Place::MySql(pool, _) => Self::MySql(pool.connect_options().connect().await.unwrap()),
            Place::Sqlite(pool, _) => Self::Sqlite(pool.connect_options().connect().await.unwrap()),
            Place::Memory(_) => unreachable!("it has no transactions"),
        }
    }

    async fn run(&mut self, sql: &str) {
        let sql = AssertSqlSafe(sql.to_owned());
        on!(self, connection => drop(sqlx::raw_sql(sql).execute(connection).await.unwrap()));
    }

    /// Begins a transaction that sees what was committed before its first read.
    async fn begin(&mut self) {
        let begin = match self {
            Self::Postgres(_) => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            Self::MySql(_) => "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; BEGIN",
            Self::Sqlite(_) => "BEGIN",
        };
        self.run(begin).await;
    }

    async fn balance(&mut self, bank: &Bank) -> i64 {
        let sql = AssertSqlSafe(format!("SELECT balance FROM {}", bank.accounts));
        on!(self, connection => sqlx::query_scalar(sql).fetch_one(connection).await.unwrap())
    }

    async fn verify(&mut self, bank: &Bank, lease: Uuid, token: i64) -> Result<Option<Duration>, StoreError> {
        let (table, key) = (&bank.backend.table, &bank.key);
        match (self, bank.backend.place()) {
            (Self::Postgres(connection), Place::Postgres(_, url)) => {
                let store = PostgresStore::open(url, table).unwrap();
                store.verify_in(connection, key, lease, token).await
            }
            (Self::MySql(connection), Place::MySql(_, url)) => {
                let store = MySqlStore::open(url, table).unwrap();
                store.verify_on(connection, key, lease, token).await
            }
            (Self::Sqlite(connection), _) => {
                sqlite::verify(connection, &*bank.store, key, lease, token).await
            }
            _ => unreachable!("the connection is one of the place's"),
        }
    }

    async fn verify_guard(&mut self, guard: &LockGuard) -> Result<(), LockError> {
        on!(self, connection => guard.verify_in(connection).await)
    }
}

/// One account with 100, and the lock on it.
struct Bank {
    backend: Backend,
    store: std::sync::Arc<dyn Store>,
    accounts: String,
    key: Key,
}

impl Bank {
    async fn new(backend: Backend) -> Self {
        use dblock_conformance::Fixture;
        let accounts = format!("{}_accounts", backend.table);
        backend
            .execute(&format!("CREATE TABLE {accounts} (balance BIGINT NOT NULL)"))
            .await;
        backend
            .execute(&format!("INSERT INTO {accounts} VALUES (100)"))
            .await;
        Self {
            store: backend.store().await,
            key: Key::new(None, "account").unwrap(),
            backend,
            accounts,
        }
    }

    async fn ask(&self, lease_id: Uuid, action: Action) -> Outcome {
        let key = self.key.clone();
        let request = Request::new(key, lease_id, action);
        self.store.apply(&[request]).await.remove(0).unwrap()
    }

    /// A lease and its token.
    async fn acquire(&self) -> (Uuid, i64) {
        self.acquire_for(TTL).await
    }

    async fn acquire_for(&self, ttl: Duration) -> (Uuid, i64) {
        let lease = Uuid::now_v7();
        let mut ask = Acquire::new(Uuid::now_v7(), ttl, "test");
        ask.spare_tokens = 10;
        match self.ask(lease, Action::Acquire(ask)).await {
            Outcome::Granted { fence_token, .. } => (lease, fence_token),
            other => panic!("{other:?}"),
        }
    }

    /// Somebody takes 10 out of the account, all by the rules.
    async fn withdraw(&self) {
        let (lease, token) = self.acquire().await;
        let mut other = User::of(&self.backend).await;
        other.begin().await;
        assert!(other.verify(self, lease, token).await.unwrap().is_some());
        let left = other.balance(self).await - 10;
        other
            .run(&format!("UPDATE {} SET balance = {left}", self.accounts))
            .await;
        other.run("COMMIT").await;
        let released = self.ask(lease, Action::Release).await;
        assert!(
            matches!(released, Outcome::Released(Released::Freed)),
            "{released:?}"
        );
    }
}

#[track_caller]
fn assert_conflict(checked: Result<Option<Duration>, StoreError>) {
    let error = checked.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(error.is_retryable());
}

async fn the_check_passes_for_the_lease_only(backend: Backend) {
    let bank = Bank::new(backend).await;
    let (lease, token) = bank.acquire_for(Duration::from_secs(3)).await;
    let mut user = User::of(&bank.backend).await;
    user.run("BEGIN").await;
    let mut others = vec![(Uuid::now_v7(), token), (lease, token - 1)];
    // SQLite's check writes a token that is ahead of the row, as after a local hand-over.
    if !matches!(user, User::Sqlite(_)) {
        others.push((lease, token + 1));
    }
    for (lease, token) in others {
        assert_eq!(user.verify(&bank, lease, token).await.unwrap(), None);
    }
    user.run("ROLLBACK; BEGIN").await;
    let left = user.verify(&bank, lease, token).await.unwrap().unwrap();
    assert!(left <= Duration::from_secs(3), "{left:?}");
    // The clock of the check is not that of the transaction's beginning.
    let over = |row: &Row| row.now > row.expire_at;
    bank.backend.until("account", TTL, over).await;
    assert_eq!(user.verify(&bank, lease, token).await.unwrap(), None);
    user.run("COMMIT").await;

    let (lease, token) = bank.acquire().await;
    let released = bank.ask(lease, Action::Release).await;
    assert!(matches!(released, Outcome::Released(_)), "{released:?}");
    assert_eq!(user.verify(&bank, lease, token).await.unwrap(), None);
}

async fn a_snapshot_from_before_the_lock_is_a_conflict(backend: Backend) {
    let bank = Bank::new(backend).await;
    // The row is there already, as after any earlier use.
    bank.withdraw().await;
    let mut user = User::of(&bank.backend).await;
    user.begin().await;
    assert_eq!(user.balance(&bank).await, 90);
    bank.withdraw().await;
    let (lease, token) = bank.acquire().await;
    assert_eq!(user.balance(&bank).await, 90, "what it reads is 10 too much");
    assert_conflict(user.verify(&bank, lease, token).await);
    user.run("ROLLBACK").await;

    user.begin().await;
    assert!(user.verify(&bank, lease, token).await.unwrap().is_some());
    assert_eq!(user.balance(&bank).await, 80);
    user.run("COMMIT").await;
}

async fn a_snapshot_from_before_a_local_hand_over_is_a_conflict(backend: Backend) {
    let bank = Bank::new(backend).await;
    let (lease, token) = bank.acquire().await;
    let mut user = User::of(&bank.backend).await;
    user.begin().await;
    assert_eq!(user.balance(&bank).await, 100);
    // The lease stays; the owner and the token change, and the row is told before anybody checks.
    bank.backend
        .execute(&format!("UPDATE {} SET balance = 90", bank.accounts))
        .await;
    let mut extend = Extend::new(1, TTL);
    extend.handed_over = Some(HandedOver::new(Uuid::now_v7(), "the next task", token + 1));
    let extended = bank.ask(lease, Action::Extend(extend)).await;
    assert!(matches!(extended, Outcome::Extended { .. }), "{extended:?}");
    assert_conflict(user.verify(&bank, lease, token + 1).await);
    user.run("ROLLBACK").await;
}

/// There is no row of the key in the snapshot: nothing that could have changed.
async fn a_snapshot_from_before_the_keys_first_use_is_a_conflict(backend: Backend) {
    let bank = Bank::new(backend).await;
    let locks = bank.backend.manager().await;
    let mut user = User::of(&bank.backend).await;
    user.begin().await;
    assert_eq!(user.balance(&bank).await, 100);
    bank.withdraw().await;
    let guard = locks.lock("account").ttl(TTL).acquire().await.unwrap();
    match user.verify_guard(&guard).await {
        Err(LockError::Store { source, .. }) => assert_conflict(Err(source)),
        checked => panic!("{checked:?}"),
    }
    assert!(!guard.is_lost());
    user.run("ROLLBACK").await;

    user.begin().await;
    user.verify_guard(&guard).await.unwrap();
    assert_eq!(user.balance(&bank).await, 90);
    user.run("COMMIT").await;
    guard.release().await.unwrap();
}

async fn a_transaction_without_a_snapshot_of_its_own_reads_what_is_there(backend: Backend) {
    let bank = Bank::new(backend).await;
    let mut user = User::of(&bank.backend).await;
    let begin = match user {
        User::Postgres(_) => "BEGIN ISOLATION LEVEL READ COMMITTED",
        _ => "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN",
    };
    user.run(begin).await;
    assert_eq!(user.balance(&bank).await, 100);
    let never = user.verify(&bank, Uuid::now_v7(), 1).await;
    assert_eq!(never.unwrap(), None, "there is no such row");
    bank.withdraw().await;
    let (lease, token) = bank.acquire().await;
    assert!(user.verify(&bank, lease, token).await.unwrap().is_some());
    assert_eq!(user.balance(&bank).await, 90);
    user.run("COMMIT").await;
}
