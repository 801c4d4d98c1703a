//! Ten thousand leases are held, and renewed, for a while.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use dblock::LockGuard;
use futures_util::future::{join_all, try_join_all};

use super::Context;
use crate::cpu;
use crate::measure::Figures;
use crate::servers::Place;
use crate::subject::{Kind, TIMEOUT, TTL, manager};

pub(super) const SUBJECTS: &[Kind] = &[Kind::DblockPostgres];

const LEASES: usize = 10_000;

pub(super) async fn round(context: &mut Context<'_>, kind: Kind) -> anyhow::Result<Figures> {
    let place = kind.place();
    // Renewals come after a third of the ttl: the quick run sees them twice, the full one six times.
    let time = Duration::from_secs(context.pace.pick(20, 60));
    context.servers.count_statements(place, true).await?;
    let locks = manager(&context.servers.url(place)?).await?;
    let take = (0..LEASES).map(|number| locks.lock(format!("held:{number}")).ttl(TTL).acquire());
    let guards = try_join_all(take).await?;

    let before = context.servers.statements(place).await?;
    let (ours, theirs) = (cpu::of_this_process()?, server_cpu(context).await?);
    let start = Instant::now();
    tokio::time::sleep(time).await;
    let lost = guards.iter().filter(|guard| guard.is_lost()).count();
    let elapsed = start.elapsed().as_secs_f64();
    let statements = context.servers.statements_since(place, before).await?;
    let connections = context.servers.connections(place).await?;
    let percent = |from: f64, to: f64| (to - from) / elapsed * 100.0;
    let ours = percent(ours, cpu::of_this_process()?);
    let theirs = theirs
        .zip(server_cpu(context).await?)
        .map(|(from, to)| percent(from, to));

    let released = join_all(guards.into_iter().map(LockGuard::release)).await;
    let failed = released.iter().filter(|outcome| outcome.is_err()).count();
    locks.shutdown(TIMEOUT).await;
    context.servers.count_statements(place, false).await?;
    let mut figures = Figures {
        connections: Some(connections as f64),
        statements: statements.map(|count| count as f64 / elapsed),
        ..Figures::default()
    }
    .with("seconds", elapsed)
    .with("lost", lost.max(failed) as f64)
    .with("our_cpu_percent", ours);
    if let Some(theirs) = theirs {
        figures = figures.with("server_cpu_percent", theirs);
    }
    Ok(figures)
}

/// CPU seconds of PostgreSQL, when it runs on this machine.
async fn server_cpu(context: &mut Context<'_>) -> anyhow::Result<Option<f64>> {
    let backend = context
        .servers
        .backend(Place::Postgres)
        .await
        .context("the server's process")?;
    Ok(cpu::of_server(backend, "postgres"))
}
