//! A soak: for an hour thousands of callers lock ten thousand keys, while connections break and the server restarts.
//! What the process and the server use must not grow.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use dblock::{InspectFilter, LockBuilder, LockError, LockManager};
use dblock_servers::{Kind, Purpose, Server};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

const KEYS: u32 = 10_000;
const CALLERS: u32 = 2_000;
const SESSIONS_END_EVERY: Duration = Duration::from_secs(10);
/// How often it restarts in a run of any length: also before the first samples that are compared, because a restart takes memory that stays.
const SERVER_RESTARTS: u32 = 12;
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// The largest growth that passes, in hundredths. One descriptor or session more is none: the pool's connections come and go.
const GROWTH: u64 = 2;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// How long the run is.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// What is in use at one moment.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// Of this process, in KiB.
    memory: u64,
    files: u64,
    tasks: u64,
    /// Of the server, this one included.
    sessions: u64,
    /// The lock table with its index, in KiB.
    table: u64,
}

type Measure = (&'static str, fn(&Sample) -> u64);

const MEASURES: [Measure; 5] = [
    ("memory, KiB", |sample| sample.memory),
    ("file descriptors", |sample| sample.files),
    ("tasks", |sample| sample.tasks),
    ("server sessions", |sample| sample.sessions),
    ("lock table, KiB", |sample| sample.table),
];

/// How calls ended.
#[derive(Debug, Default)]
struct Ends {
    done: AtomicU64,
    busy: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

pub(crate) async fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    ensure!(
        arguments.minutes > 1,
        "the samples of a minute are too few to be compared"
    );
    let length = Duration::from_mins(arguments.minutes);
    let mut server = Server::fresh(Kind::Postgres, Purpose::Torture).await?;
    let pool = PgPoolOptions::new()
        .max_connections(16)
        .connect(server.url())
        .await?;
    let locks = LockManager::builder(&pool).auto_migrate(true).build().await?;
    let ends = Arc::new(Ends::default());
    let end = Instant::now() + length;
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(one_caller(locks.clone(), pool.clone(), Arc::clone(&ends), end));
    }
    let samples = disturb_and_sample(&mut server, &ends, end).await?;
    while let Some(ended) = callers.join_next().await {
        ended.context("a caller panicked")?;
    }
    locks.shutdown(Duration::from_secs(5)).await;
    let after = LockManager::builder(&pool).build().await?;
    let held = after.admin().list(InspectFilter::new()).await?;
    ensure!(held.is_empty(), "these rows are held after the end: {held:?}");
    println!("{ends}");
    let (done, failed) = (
        ends.done.load(Ordering::Relaxed),
        ends.failed.load(Ordering::Relaxed),
    );
    ensure!(
        done > 2 * failed,
        "too few calls were done for the run to show anything"
    );
    Ok(judge(&samples))
}

/// Locks one key after the other, each in another way.
async fn one_caller(locks: LockManager, pool: PgPool, ends: Arc<Ends>, end: Instant) {
    while Instant::now() < end {
        let key = || format!("soak:{}", fastrand::u32(..KEYS));
        let lock = locks
            .lock(key())
            .ttl(Duration::from_secs(10))
            .wait(Duration::from_secs(2));
        let body = || sleep(Duration::from_millis(fastrand::u64(..20)));
        let patience = Duration::from_millis(fastrand::u64(..20));
        let outcome = match fastrand::u8(..20) {
            0..10 => Ok(lock.run(body()).await.map_err(Into::into)),
            10..12 => Ok(lock.shared().run(body()).await.map_err(Into::into)),
            12..14 => Ok(lock.limit(3).run(body()).await.map_err(Into::into)),
            14 => Ok(locks
                .lock([key(), key(), key()])
                .run(body())
                .await
                .map_err(Into::into)),
            15 => Ok(lock.try_acquire().await.map(drop).map_err(Into::into)),
            16..18 => timeout(patience, async { Ok(lock.run(body()).await?) }).await,
            _ => Ok(one_unit(lock, &pool).await),
        };
        let end = match outcome {
            Ok(Ok(())) => &ends.done,
            Ok(Err(error)) if is_busy(&error) => &ends.busy,
            Ok(Err(_)) => &ends.failed,
            Err(_) => &ends.dropped,
        };
        end.fetch_add(1, Ordering::Relaxed);
        sleep(Duration::from_millis(fastrand::u64(..600))).await;
    }
}

/// A unit of work, whose transaction takes the key.
async fn one_unit(lock: LockBuilder<'_>, pool: &PgPool) -> anyhow::Result<()> {
    let unit = lock.transaction(pool, async |mut tx| {
        sqlx::query("SELECT 1").execute(&mut **tx).await?;
        anyhow::Ok(())
    });
    unit.await
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<LockError>().is_some_and(LockError::is_busy)
}

/// Breaks connections and restarts the server, and looks every ten seconds at what is in use.
async fn disturb_and_sample(server: &mut Server, ends: &Ends, end: Instant) -> anyhow::Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let started = Instant::now();
    let mut every = [
        SAMPLE_EVERY,
        SESSIONS_END_EVERY,
        (end - started) / SERVER_RESTARTS,
    ]
    .map(interval);
    for interval in &mut every {
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        interval.tick().await;
    }
    let [look, break_some, restart] = &mut every;
    while Instant::now() < end {
        tokio::select! {
            _ = look.tick() => {
                let sample = Sample::take(server.url()).await?;
                samples.push(sample);
                eprintln!("{:>5} s  {ends}  {sample}", started.elapsed().as_secs());
            }
            _ = break_some.tick() => {
                let mut admin = PgConnection::connect(server.url()).await?;
                sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND random() < 0.5",
                )
                .execute(&mut admin)
                .await?;
            }
            _ = restart.tick() => {
                server.stop_at_once();
                server.restart().await?;
            }
            () = tokio::time::sleep_until(end) => {}
        }
    }
    Ok(samples)
}

impl Sample {
    async fn take(url: &str) -> anyhow::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status")?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.and_then(|line| line.trim().strip_suffix(" kB"));
        let mut admin = PgConnection::connect(url).await?;
        let (sessions, table): (i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'), \
             pg_total_relation_size('distributed_lock') / 1024",
        )
        .fetch_one(&mut admin)
        .await?;
        admin.close().await?;
        Ok(Self {
            memory: memory
                .context("the system does not say how much memory is used")?
                .parse()?,
            files: std::fs::read_dir("/proc/self/fd")?.count() as u64,
            tasks: Handle::current().metrics().num_alive_tasks() as u64,
            sessions: sessions.cast_unsigned(),
            table: table.cast_unsigned(),
        })
    }
}

/// Compares the last sixth of the run with the sixth after its first third.
fn judge(samples: &[Sample]) -> ExitCode {
    let sixth = samples.len() / 6;
    let (first, last) = (&samples[2 * sixth..3 * sixth], &samples[5 * sixth..]);
    let mut code = ExitCode::SUCCESS;
    for (name, measure) in MEASURES {
        let (before, after) = (median(first, measure), median(last, measure));
        let grew = after > before + 1 && after * 100 > before * (100 + GROWTH);
        println!(
            "{name:<18} {before:>9} → {after:>9}{}",
            if grew { "  GREW" } else { "" }
        );
        if grew {
            code = ExitCode::FAILURE;
        }
    }
    code
}

fn median(samples: &[Sample], measure: fn(&Sample) -> u64) -> u64 {
    let mut values: Vec<u64> = samples.iter().map(measure).collect();
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            done,
            busy,
            failed,
            dropped,
        } = self;
        write!(
            f,
            "{} done, {} busy, {} failed, {} dropped",
            done.load(Ordering::Relaxed),
            busy.load(Ordering::Relaxed),
            failed.load(Ordering::Relaxed),
            dropped.load(Ordering::Relaxed)
        )
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            memory,
            files,
            tasks,
            sessions,
            table,
        } = self;
        write!(
            f,
            "{memory} KiB, {files} files, {tasks} tasks, {sessions} sessions, table {table} KiB"
        )
    }
}
