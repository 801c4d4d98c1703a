//! The orders in PostgreSQL or SQLite: the same statements for both.

use std::time::Duration;

use dblock::{LockError, LockManager};
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{PgPool, SqlitePool};

use super::shop::ShopError;

/// The application's pool.
#[derive(Debug, Clone)]
pub enum Database {
    /// PostgreSQL, for any number of nodes.
    Postgres(PgPool),
    /// A SQLite file, for processes of one host.
    Sqlite(SqlitePool),
}

/// An order as it is stored and as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Order {
    /// Its number.
    pub id: i64,
    /// The price.
    pub cents: i64,
    /// The fence token under which it was settled; `null` while it is not.
    pub settled_by: Option<i64>,
}

/// Runs the same code on whichever pool it is.
macro_rules! on {
    ($database:expr, |$pool:ident| $code:expr) => {
        match $database {
            Database::Postgres($pool) => $code,
            Database::Sqlite($pool) => $code,
        }
    };
}

impl Database {
    /// Connects to `postgres://…` or `sqlite://…`; a SQLite file is created when it is missing.
    ///
    /// # Errors
    /// When the URL cannot be read or the database not be reached.
    pub async fn connect(url: &str) -> Result<Self, sqlx::Error> {
        // Not the default of 30 seconds: a client should hear soon that the database is down.
        let timeout = Duration::from_secs(3);
        if url.starts_with("sqlite:") {
            let options: SqliteConnectOptions = url.parse()?;
            let options = options
                .create_if_missing(true)
                .journal_mode(SqliteJournalMode::Wal)
                .busy_timeout(Duration::from_secs(5));
            let pool = SqlitePoolOptions::new().acquire_timeout(timeout);
            return Ok(Self::Sqlite(pool.connect_with(options).await?));
        }
        let pool = PgPoolOptions::new().acquire_timeout(timeout);
        Ok(Self::Postgres(pool.connect(url).await?))
    }

    /// A lock manager beside the orders. It takes the pool's options and opens connections of its own.
    pub(super) async fn lock_manager(&self) -> Result<LockManager, LockError> {
        on!(self, |pool| LockManager::builder(pool))
            .auto_migrate(true)
            .build()
            .await
    }

    pub(super) async fn create_tables(&self) -> Result<(), sqlx::Error> {
        let id = match self {
            Self::Postgres(_) => "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
            Self::Sqlite(_) => "INTEGER PRIMARY KEY",
        };
        let table = format!(
            "CREATE TABLE IF NOT EXISTS shop_order (id {id}, cents BIGINT NOT NULL, settled_by BIGINT)"
        );
        let table = sqlx::AssertSqlSafe(table);
        on!(self, |pool| sqlx::raw_sql(table).execute(pool).await.map(|_| ()))
    }

    pub(super) async fn insert(&self, cents: i64) -> Result<Order, sqlx::Error> {
        let id = on!(self, |pool| sqlx::query_scalar(
            "INSERT INTO shop_order (cents) VALUES ($1) RETURNING id"
        )
        .bind(cents)
        .fetch_one(pool)
        .await?);
        Ok(Order {
            id,
            cents,
            settled_by: None,
        })
    }

    pub(super) async fn find(&self, id: i64) -> Result<Option<Order>, sqlx::Error> {
        let row: Option<(i64, i64, Option<i64>)> = on!(self, |pool| sqlx::query_as(
            "SELECT id, cents, settled_by FROM shop_order WHERE id = $1"
        )
        .bind(id)
        .fetch_optional(pool)
        .await?);
        Ok(row.map(|(id, cents, settled_by)| Order {
            id,
            cents,
            settled_by,
        }))
    }

    /// Writes that the order is settled, in a transaction that commits only while the caller's lock holds.
    pub(super) async fn settle(&self, mut order: Order) -> Result<Order, ShopError> {
        let lock = dblock::current().ok_or(LockError::NoManager)?;
        order.settled_by = Some(lock.fence_token());
        on!(self, |pool| {
            let mut tx = dblock::begin(pool).await?;
            lock.verify_in(&mut tx).await?;
            sqlx::query("UPDATE shop_order SET settled_by = $1 WHERE id = $2")
                .bind(order.settled_by)
                .bind(order.id)
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
        });
        Ok(order)
    }

    /// Deletes an order that is not settled, under the lock that `settle` takes: an order is not cancelled
    /// while it is being settled. The commit frees the lock, and an error or a dropped future leaves nothing
    /// behind. False when there is no such order.
    pub(super) async fn cancel(&self, locks: &LockManager, id: i64) -> Result<bool, ShopError> {
        let key = format!("order:{id}");
        let deleted = on!(self, |pool| {
            let body = locks.lock(key).transaction(pool, async |mut tx| {
                let delete = sqlx::query("DELETE FROM shop_order WHERE id = $1 AND settled_by IS NULL");
                let deleted = delete.bind(id).execute(&mut **tx).await?.rows_affected();
                // More statements here are part of the same transaction, such as a record of who cancelled
                // it.
                Ok::<_, ShopError>(deleted)
            });
            body.await?
        });
        Ok(deleted == 1)
    }
}
