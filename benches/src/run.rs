//! One run: every scenario, its subjects in turns.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context as _, anyhow};
use tokio::signal::unix::{SignalKind, signal};

use crate::machine;
use crate::measure::Figures;
use crate::report;
use crate::results::Results;
use crate::scenario::{Context, Pace, Scenario};
use crate::servers::{Servers, Urls};
use crate::subject::Kind;

/// Runs the scenarios `only`, or all, with the subjects that are wanted and whose server is there.
pub(crate) async fn run(
    urls: Urls,
    pace: Pace,
    only: &[Scenario],
    wanted: &[Kind],
) -> anyhow::Result<Results> {
    let mut servers = Servers::prepare(urls).await?;
    let mut results = Results::default();
    let outcome = tokio::select! {
        outcome = measure(&mut servers, pace, only, wanted, &mut results) => outcome,
        signal = stop_signal() => Err(signal),
    };
    servers.clean_up().await?;
    outcome.map(|()| results)
}

/// Ends when the run is to end early.
async fn stop_signal() -> anyhow::Error {
    let listen = || anyhow::Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?));
    let (mut interrupt, mut terminate) = match listen() {
        Ok(signals) => signals,
        Err(error) => return error,
    };
    tokio::select! {
        _ = interrupt.recv() => anyhow!("stopped by Ctrl-C"),
        _ = terminate.recv() => anyhow!("stopped by a signal"),
    }
}

async fn measure(
    servers: &mut Servers,
    pace: Pace,
    only: &[Scenario],
    wanted: &[Kind],
    results: &mut Results,
) -> anyhow::Result<()> {
    results.machine = machine::describe();
    if let Some(busy) = machine::busy_cores().await {
        results
            .machine
            .insert("busy_cores_before".to_owned(), busy.into());
        if busy > 0.25 {
            eprintln!("something else keeps {busy:.1} cores busy: the figures will be noisy");
        }
    }
    results.machine.insert(
        "rounds".to_owned(),
        if pace.quick { "quick" } else { "full" }.into(),
    );
    results
        .machine
        .insert("servers".to_owned(), servers.describe().await?.into());
    let scenarios: Vec<_> = Scenario::ALL
        .into_iter()
        .filter(|one| only.is_empty() || only.contains(one))
        .collect();
    for (number, scenario) in scenarios.iter().copied().enumerate() {
        let kinds = scenario.subjects().iter().copied();
        let kinds: Vec<_> = kinds
            .filter(|kind| (wanted.is_empty() || wanted.contains(kind)) && servers.has(kind.place()))
            .collect();
        if kinds.is_empty() {
            eprintln!("{scenario}: left out, none of its subjects can take part");
            continue;
        }
        eprintln!(
            "{scenario} ({} of {}): {}",
            number + 1,
            scenarios.len(),
            scenario.title()
        );
        let start = Instant::now();
        rounds(servers, pace, scenario, &kinds, results).await?;
        eprintln!("{scenario}: done in {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

/// A B C A B C …: a noisy machine hits all of them alike.
async fn rounds(
    servers: &mut Servers,
    pace: Pace,
    scenario: Scenario,
    kinds: &[Kind],
    results: &mut Results,
) -> anyhow::Result<()> {
    let rounds = scenario.rounds(pace);
    let mut found: Vec<Vec<Figures>> = vec![Vec::new(); kinds.len()];
    let mut pools = BTreeMap::new();
    for round in 0..rounds {
        for (kind, found) in kinds.iter().zip(&mut found) {
            let mut context = Context {
                servers,
                pace,
                round,
                pools: &mut pools,
            };
            let figures = scenario.round(&mut context, *kind).await;
            let figures = figures.with_context(|| format!("{scenario}: {kind}"))?;
            eprintln!(
                "  {scenario} {}/{rounds} {kind:<26} {}",
                round + 1,
                report::line(&figures)
            );
            found.push(figures);
        }
    }
    for (kind, found) in kinds.iter().zip(&found) {
        let mut figures = Figures::median(found);
        if let (None, Some(per_pair), Some(per_s)) = (
            figures.statements,
            figures.more.get("statements_per_pair"),
            figures.per_s,
        ) {
            figures.statements = Some(per_pair * per_s);
        }
        results.set(scenario, *kind, figures);
    }
    Ok(())
}
