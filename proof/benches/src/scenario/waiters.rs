//! A thousand tasks of one process wait for a key that another node holds.

use std::time::{Duration, Instant};

use anyhow::ensure;
use dblock::LockError;
use tokio::task::JoinSet;

use super::Context;
use crate::measure::Figures;
use crate::subject::{Kind, TIMEOUT, manager};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockPostgres, Kind::DblockMysql];

const TASKS: usize = 1000;

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let place = kind.place();
    let wait = Duration::from_secs(context.pace.pick(5, 10));
    context.servers.count_statements(place, true).await?;
    let url = context.servers.url(place)?;

    // A lease so long that the holder sends nothing meanwhile.
    let holder = manager(&url).await?;
    let guard = holder
        .lock("awaited")
        .ttl(Duration::from_hours(1))
        .acquire()
        .await?;
    let others = context.servers.connections(place).await?;

    let locks = manager(&url).await?;
    // Connects, and begins to listen.
    let refused = locks.lock("awaited").wait(Duration::from_secs(1)).acquire().await;
    ensure!(refused.is_err(), "the key that another node holds was granted");
    let before = context.servers.statements(place).await?;
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move { locks.lock("awaited").wait(wait).acquire().await.map(drop) });
    }
    tokio::time::sleep(wait / 2).await;
    let connections = context.servers.connections(place).await?.saturating_sub(others);
    while let Some(ended) = tasks.join_next().await {
        let ended = ended?;
        ensure!(
            matches!(ended, Err(LockError::Timeout { .. })),
            "a waiter ended with {ended:?}"
        );
    }
    let time = start.elapsed().as_secs_f64();
    let mut statements = context.servers.statements_since(place, before).await?;
    if kind.place() == crate::servers::Place::MySql {
        // Counting connections was one.
        statements = statements.map(|count| count.saturating_sub(1));
    }

    guard.release().await?;
    locks.shutdown(TIMEOUT).await;
    holder.shutdown(TIMEOUT).await;
    context.servers.count_statements(place, false).await?;
    Ok(Figures {
        connections: Some(connections as f64),
        statements: statements.map(|count| count as f64 / time),
        ..Figures::default()
    })
}
