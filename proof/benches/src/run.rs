//! One run: every scenario, its subjects in turns.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{anyhow, ensure};
use tokio::signal::unix::{SignalKind, signal};

use crate::machine;
use crate::measure::Figures;
use crate::ratios;
use crate::report;
use crate::results::Results;
use crate::scenario::{Context, Pace, Scenario};
use crate::servers::{Servers, Urls};
use crate::subject::Kind;

/// Runs the scenarios `only`, or all, with the subjects that are wanted and whose server is there. Results
/// so far are kept when the run ends early.
pub(crate) async fn run(
    urls: Urls,
    pace: Pace,
    only: &[Scenario],
    wanted: &[Kind],
) -> anyhow::Result<(Results, anyhow::Result<()>)> {
    let mut servers = Servers::prepare(urls).await?;
    let mut results = Results::default();
    let outcome = tokio::select! {
        outcome = measure(&mut servers, pace, only, wanted, &mut results) => outcome,
        signal = stop_signal() => Err(signal),
    };
    servers.clean_up().await?;
    let outcome = outcome.and_then(|()| {
        let failures = results.failures.join("\n");
        ensure!(failures.is_empty(), "not measured:\n{failures}");
        Ok(())
    });
    Ok((results, outcome))
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
        let kinds: Vec<_> = scenario
            .subjects()
            .filter(|kind| {
                let wanted = match wanted {
                    // A quick run takes its time for the figures that are judged.
                    [] => !pace.quick || ratios::ALL.iter().any(|ratio| ratio.needs(scenario, *kind)),
                    wanted => wanted.contains(kind),
                };
                wanted && servers.has(kind.place())
            })
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
        rounds(servers, pace, scenario, &kinds, results).await;
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
) {
    let rounds = scenario.rounds(pace);
    // Without figures: the subject has failed, and is left out from then on.
    let mut found: Vec<Option<Vec<Figures>>> = vec![Some(Vec::new()); kinds.len()];
    let mut pools = BTreeMap::new();
    for round in 0..rounds {
        for (kind, place) in kinds.iter().zip(&mut found) {
            let Some(found) = place else { continue };
            let mut context = Context {
                servers,
                pace,
                round,
                pools: &mut pools,
            };
            let figures = match scenario.round(&mut context, *kind).await {
                Ok(figures) => figures,
                Err(error) => {
                    let failure = format!("{scenario}: {kind}: {error:#}");
                    eprintln!("  FAILED {failure}");
                    results.failures.push(failure);
                    *place = None;
                    continue;
                }
            };
            eprintln!(
                "  {scenario} {}/{rounds} {kind:<26} {}",
                round + 1,
                report::line(&figures)
            );
            found.push(figures);
        }
    }
    for (kind, found) in kinds.iter().zip(&found) {
        let Some(found) = found else { continue };
        results.set(scenario, *kind, found.clone());
    }
}
