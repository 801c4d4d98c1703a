//! One of the processes: at each tick of its clock it wants the job done.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use chrono::{DateTime, TimeDelta, Utc};
use croner::Cron;
use dblock::{LockManager, LockOptions, OnCrash, Run, RunOptions};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use tokio::time::sleep;

use crate::process::end_with_the_parent;

/// The hidden first argument that makes this program a node.
pub(crate) const NODE: &str = "--node";

/// A node prints this when it has stopped in the middle of the job.
pub(crate) const IN_THE_MIDDLE: &str = "in the middle";

/// When the job runs. In production this would be `0 2 * * *`, and everything else the same.
const SCHEDULE: &str = "*/2 * * * *";

/// How many times faster than the real clock the clocks of this example are: a night takes two seconds.
const SPEED: i32 = 60;

/// How long the job takes: less than the clocks are apart.
const WORK: Duration = Duration::from_millis(150);

/// How long an outcome is remembered, and the age from which a tick is refused.
const REMEMBER: Duration = Duration::from_hours(24);

/// The parent's order to a node, on its command line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: i64,
    /// Where the locks, their records and the reports are.
    pub(crate) file: PathBuf,
    /// When the clocks began to run fast. A clock that is right showed this time then.
    pub(crate) start: DateTime<Utc>,
    /// How many seconds the clock of this node is ahead.
    pub(crate) ahead: i64,
    pub(crate) nights: usize,
    /// Stop for ever in the middle of the job, from this night on.
    pub(crate) stops_at: Option<usize>,
}

/// The ticks of so many nights. Nodes that begin at the same time agree on them, whatever their clocks say.
pub(crate) fn ticks(start: DateTime<Utc>, nights: usize) -> anyhow::Result<Vec<DateTime<Utc>>> {
    let schedule: Cron = SCHEDULE.parse().context("the schedule is no cron pattern")?;
    Ok(schedule.iter_after(start).take(nights).collect())
}

/// The tick as it is in the key and in the report.
pub(crate) fn name(tick: DateTime<Utc>) -> String {
    tick.format("%Y-%m-%dT%H:%MZ").to_string()
}

/// The whole life of a node.
pub(crate) async fn run(order: &str) -> anyhow::Result<()> {
    end_with_the_parent();
    let order: Order = serde_json::from_str(order).context("an order is for the example's own use")?;
    let db = open(&order.file).await?;
    let locks = LockManager::builder(&db).build().await?;
    for (night, tick) in ticks(order.start, order.nights)?.into_iter().enumerate() {
        order.until(tick).await;
        let stops = order.stops_at.is_some_and(|first| night >= first);
        nightly(&locks, &db, &order, tick, stops)
            .await
            .with_context(|| format!("node {} could not do the job of {tick}", order.number))?;
    }
    locks.shutdown(Duration::from_secs(1)).await;
    Ok(())
}

/// The job of one tick. The first node does it; the others get the outcome.
async fn nightly(
    locks: &LockManager,
    db: &SqlitePool,
    order: &Order,
    tick: DateTime<Utc>,
    stops: bool,
) -> anyhow::Result<()> {
    // Longer than the lease of a node that dies: then somebody else does the job.
    let lock = LockOptions::new()
        .ttl(Duration::from_secs(2))
        .wait(Duration::from_secs(20));
    let options = RunOptions::new(REMEMBER, OnCrash::CompleteIn)
        .tick(tick)
        .lock(lock);
    let job = async |run: Run| {
        sleep(WORK).await;
        let mut tx = dblock::begin(db).await?;
        sqlx::query("INSERT INTO report (tick, node, attempt) VALUES ($1, $2, $3)")
            .bind(name(tick))
            .bind(order.number)
            .bind(run.attempt())
            .execute(&mut *tx)
            .await?;
        if stops {
            println!("{IN_THE_MIDDLE}");
            std::future::pending::<()>().await;
        }
        // Report, record and release stand together or not at all.
        run.complete_in(&mut tx, &()).await?;
        tx.commit().await?;
        anyhow::Ok(())
    };
    let done = locks
        .run_once(format!("nightly:{}", name(tick)), options, job)
        .await?;
    sqlx::query("INSERT INTO seen (tick, node, ran) VALUES ($1, $2, $3)")
        .bind(name(tick))
        .bind(order.number)
        .bind(done.has_run())
        .execute(db)
        .await?;
    Ok(())
}

impl Order {
    /// Waits until this node's clock says that it is `time`.
    async fn until(&self, time: DateTime<Utc>) {
        let now = self.start + (Utc::now() - self.start) * SPEED + TimeDelta::seconds(self.ahead);
        let left = (time - now) / SPEED;
        // A time that is over is no time to wait.
        sleep(left.to_std().unwrap_or_default()).await;
    }
}

/// Opens the file, which is created if it is not there.
pub(crate) async fn open(file: &Path) -> anyhow::Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(15));
    let pool = SqlitePoolOptions::new().max_connections(2).connect_with(options);
    pool.await
        .with_context(|| format!("cannot open {}", file.display()))
}
