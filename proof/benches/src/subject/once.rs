//! Runs that are remembered, beside what they are made of: a lock, and a read by primary key.
//! `lock` does all of it, so that its time is the call's.

use std::time::Duration;

use ::dblock::{LockError, LockManager, LockOptions, OnCrash, RunOptions};
use anyhow::ensure;
use sqlx::postgres::PgPool;
use uuid::Uuid;

use super::{Client, Step, Subject, TIMEOUT, TTL, dblock, pool};

pub(super) const RUN_SETTINGS: &str =
    "`locks.run_once` with a body that does nothing; each call has a new key";
pub(super) const LOCK_SETTINGS: &str = "`acquire` and `release`; each call has a new key";
pub(super) const REPLAY_SETTINGS: &str = "`locks.run_once` of a key that has succeeded";
pub(super) const READ_SETTINGS: &str = "SELECT of the stored result by its primary key, through a pool of as many connections as dblock reads records over";

/// dblock reads records over so many connections.
const CONNECTIONS: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Run,
    Lock,
    Replay,
    Read,
}

pub(super) struct Runs {
    locks: LockManager,
    pool: PgPool,
    way: Way,
}

struct Task {
    locks: LockManager,
    pool: PgPool,
    way: Way,
    key: String,
    is_new: bool,
}

pub(super) async fn open(url: &str, way: Way) -> anyhow::Result<Runs> {
    let locks = dblock::table_of(url, dblock::TABLE).await?;
    let pool = pool::of(CONNECTIONS).connect_lazy(url)?;
    Ok(Runs { locks, pool, way })
}

impl Subject for Runs {
    fn client(&self, key: &str) -> Box<dyn Client> {
        Box::new(Task {
            locks: self.locks.clone(),
            pool: self.pool.clone(),
            way: self.way,
            key: format!("once:{key}"),
            is_new: true,
        })
    }

    fn close(&self) -> Step<'_> {
        pool::close(&self.pool, Some(&self.locks))
    }
}

impl Task {
    fn lock_options() -> LockOptions {
        LockOptions::new().ttl(TTL).wait(TIMEOUT)
    }

    async fn run(&self, key: &str) -> anyhow::Result<bool> {
        let options = RunOptions::new(Duration::from_hours(1), OnCrash::Stop).lock(Self::lock_options());
        let body = async |_| Ok::<_, LockError>("receipt 7".to_owned());
        Ok(self.locks.run_once(key, options, body).await?.has_run())
    }

    async fn call(&self) -> anyhow::Result<()> {
        match self.way {
            Way::Run => ensure!(self.run(&self.fresh()).await?, "a new key was not run"),
            Way::Lock => {
                let guard = self
                    .locks
                    .lock(self.fresh())
                    .options(&Self::lock_options())
                    .acquire()
                    .await?;
                guard.release().await?;
            }
            Way::Replay => ensure!(!self.run(&self.key).await?, "it ran again"),
            Way::Read => {
                let read = sqlx::query_scalar("SELECT result FROM bench_lock_record WHERE record_key = $1");
                let result: String = read.bind(&self.key).fetch_one(&self.pool).await?;
                ensure!(result == "\"receipt 7\"", "the result is {result}");
            }
        }
        Ok(())
    }

    fn fresh(&self) -> String {
        format!("{}:{}", self.key, Uuid::now_v7())
    }
}

impl Client for Task {
    fn lock(&mut self) -> Step<'_> {
        Box::pin(async {
            if std::mem::take(&mut self.is_new) && matches!(self.way, Way::Replay | Way::Read) {
                self.run(&self.key).await?;
            }
            self.call().await
        })
    }

    fn unlock(&mut self) -> Step<'_> {
        Box::pin(async {
            ensure!(!self.is_new, "the call was made before");
            Ok(())
        })
    }
}
