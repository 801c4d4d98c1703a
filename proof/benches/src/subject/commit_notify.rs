//! The floor of a durable hand-over from process to process: one statement and one commit pass a row on, and
//! a notification tells the waiter. There are no leases, tokens or time limits: if the waiter is gone, nobody
//! ever enters.

use anyhow::{Context as _, ensure};
use sqlx::postgres::{PgListener, PgPool, PgPoolOptions};

use super::{Client, Step, Subject, TIMEOUT};

pub(super) const SETTINGS: &str = "one UPDATE with pg_notify and its commit; the waiter listens; prepared";

const TABLE: &str = "CREATE TABLE IF NOT EXISTS handed_rows
    (lock_key text PRIMARY KEY, held boolean NOT NULL, waiting boolean NOT NULL) WITH (fillfactor = 50)";
/// Takes a free row; of one that is held, waits for it. Says whether it is taken.
const TAKE: &str = "INSERT INTO handed_rows AS h (lock_key, held, waiting) VALUES ($1, true, false)
    ON CONFLICT (lock_key) DO UPDATE SET waiting = h.held, held = true RETURNING NOT waiting";
const PASS_ON: &str = "WITH passed AS (
        UPDATE handed_rows SET held = waiting, waiting = false WHERE lock_key = $1 RETURNING held)
    SELECT CASE WHEN held THEN pg_notify('handed', $1) END FROM passed";

pub(super) struct Rows {
    pool: PgPool,
}

struct Row {
    pool: PgPool,
    listener: Option<PgListener>,
    key: String,
}

pub(super) async fn open(url: &str) -> anyhow::Result<Rows> {
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .acquire_timeout(TIMEOUT)
        .test_before_acquire(false)
        .connect(url)
        .await?;
    sqlx::raw_sql(TABLE).execute(&pool).await?;
    Ok(Rows { pool })
}

impl Subject for Rows {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Row {
            pool: self.pool.clone(),
            listener: None,
            key: key.to_owned(),
        })
    }

    fn close(&self) -> Step<'_> {
        Box::pin(async {
            self.pool.close().await;
            Ok(())
        })
    }
}

impl Client for Row {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            if self.listener.is_none() {
                let mut listener = PgListener::connect_with(&self.pool).await?;
                listener.listen("handed").await?;
                self.listener = Some(listener);
            }
            let taken: bool = sqlx::query_scalar(TAKE)
                .bind(&self.key)
                .fetch_one(&self.pool)
                .await?;
            if !taken {
                let listener = self.listener.as_mut().context("made above")?;
                let heard = listener.recv().await?;
                ensure!(heard.payload() == self.key, "heard {heard:?}");
            }
            Ok(())
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            sqlx::query(PASS_ON).bind(&self.key).execute(&self.pool).await?;
            Ok(())
        })
    }
}
