//! A unit of work: lock an order, update the order, unlock. Done with a lock of dblock, and with what
//! PostgreSQL has. `lock` does all of it, so that its time is the unit's.

use ::dblock::{LockError, LockManager, LockOptions};
use anyhow::ensure;
use sqlx::postgres::PgPool;
use sqlx::{PgConnection, Postgres, Transaction};

use super::{Client, Step, Subject, TIMEOUT, TTL, Use, dblock, pool};

pub(super) const TRANSACTION_SETTINGS: &str =
    "`transaction` with the UPDATE as its body; the pool has the same size for all units of work";
pub(super) const LOCK_SETTINGS: &str = "`locks.lock(key).run` around BEGIN, UPDATE, COMMIT";
pub(super) const FOR_UPDATE_SETTINGS: &str = "BEGIN, SELECT … FOR UPDATE, UPDATE, COMMIT";
pub(super) const XACT_LOCK_SETTINGS: &str = "BEGIN, `pg_advisory_xact_lock`, UPDATE, COMMIT";

/// How the order is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Transaction,
    Lock,
    ForUpdate,
    XactLock,
}

pub(super) struct Units {
    locks: LockManager,
    pool: PgPool,
    way: Way,
}

struct Unit {
    locks: LockManager,
    pool: PgPool,
    way: Way,
    key: String,
    options: LockOptions,
    is_new: bool,
}

pub(super) async fn open(url: &str, way: Way, plan: Use) -> anyhow::Result<Units> {
    let pool = pool::of(u32::try_from(plan.pool)?).connect(url).await?;
    sqlx::raw_sql(
        "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, paid bigint NOT NULL) WITH (fillfactor = 50)",
    )
    .execute(&pool)
    .await?;
    let locks = dblock::table_of(url, dblock::TABLE).await?;
    Ok(Units { locks, pool, way })
}

impl Subject for Units {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Unit {
            locks: self.locks.clone(),
            pool: self.pool.clone(),
            way: self.way,
            key: key.to_owned(),
            options: LockOptions::new().ttl(TTL).wait(TIMEOUT),
            is_new: true,
        })
    }

    fn close(&self) -> Step<'_> {
        pool::close(&self.pool, Some(&self.locks))
    }
}

/// The error of a body.
#[derive(Debug)]
struct Failed(anyhow::Error);

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self(error.into())
    }
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self(error.into())
    }
}

impl Unit {
    async fn locked_by(&self, statement: &'static str) -> anyhow::Result<()> {
        let mut tx = self.pool.begin().await?;
        sqlx::query(statement).bind(&self.key).execute(&mut *tx).await?;
        pay(&mut tx, &self.key).await?;
        Ok(tx.commit().await?)
    }
}

async fn pay(connection: &mut PgConnection, key: &str) -> Result<(), sqlx::Error> {
    let update = sqlx::query("UPDATE orders SET paid = paid + 1 WHERE id = $1").bind(key);
    match update.execute(connection).await?.rows_affected() {
        1 => Ok(()),
        _ => Err(sqlx::Error::RowNotFound),
    }
}

impl Client for Unit {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            if std::mem::take(&mut self.is_new) {
                let insert = sqlx::query("INSERT INTO orders VALUES ($1, 0) ON CONFLICT DO NOTHING");
                insert.bind(&self.key).execute(&self.pool).await?;
            }
            match self.way {
                Way::Transaction => {
                    let order = self.locks.lock(&self.key).options(&self.options);
                    let unit = order.transaction(&self.pool, async |mut tx| {
                        Ok::<_, Failed>(pay(&mut tx, &self.key).await?)
                    });
                    unit.await.map_err(|error| error.0)
                }
                Way::Lock => {
                    let body = async {
                        let mut tx: Transaction<'_, Postgres> = self.pool.begin().await?;
                        pay(&mut tx, &self.key).await?;
                        tx.commit().await
                    };
                    Ok(self.locks.lock(&self.key).options(&self.options).run(body).await??)
                }
                Way::ForUpdate => {
                    self.locked_by("SELECT paid FROM orders WHERE id = $1 FOR UPDATE")
                        .await
                }
                Way::XactLock => {
                    self.locked_by("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))")
                        .await
                }
            }
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            ensure!(!self.is_new, "the unit was done before");
            Ok(())
        })
    }
}
