//! One run: every scenario, its subjects in turns.

use std::time::Instant;

use anyhow::Context as _;

use crate::measure::Figures;
use crate::report::number;
use crate::results::Results;
use crate::scenario::{Context, Pace, Scenario};
use crate::servers::{Servers, Urls};
use crate::subject::Kind;

/// Runs the scenarios `only`, or all, with the subjects that are wanted and whose server is there.
pub(crate) async fn run(urls: Urls, pace: Pace, only: &[Scenario], wanted: &[Kind]) -> anyhow::Result<Results> {
    let mut servers = Servers::prepare(urls).await?;
    let mut results = Results::default();
    let outcome = measure(&mut servers, pace, only, wanted, &mut results).await;
    servers.clean_up().await?;
    outcome.map(|()| results)
}

async fn measure(
    servers: &mut Servers,
    pace: Pace,
    only: &[Scenario],
    wanted: &[Kind],
    results: &mut Results,
) -> anyhow::Result<()> {
    results.machine.insert("servers".to_owned(), servers.describe().await?.into());
    for scenario in Scenario::ALL.into_iter().filter(|one| only.is_empty() || only.contains(one)) {
        let kinds = scenario.subjects().iter().copied();
        let kinds: Vec<_> = kinds
            .filter(|kind| (wanted.is_empty() || wanted.contains(kind)) && servers.has(kind.place()))
            .collect();
        if kinds.is_empty() {
            eprintln!("{scenario}: left out, none of its subjects can take part");
            continue;
        }
        rounds(servers, pace, scenario, &kinds, results).await?;
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
    eprintln!("{scenario}: {}; {rounds} rounds of {} subjects", scenario.title(), kinds.len());
    let start = Instant::now();
    let mut found: Vec<Vec<Figures>> = vec![Vec::new(); kinds.len()];
    for round in 0..rounds {
        for (kind, found) in kinds.iter().zip(&mut found) {
            let mut context = Context { servers, pace, round };
            let figures = scenario.round(&mut context, *kind).await;
            let figures = figures.with_context(|| format!("{scenario}: {kind}"))?;
            let shown = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
            eprintln!(
                "  {scenario} {}/{rounds} {:<26} {:>8}/s  p50 {:>8} µs  p99 {:>8} µs",
                round + 1,
                kind.name(),
                shown(figures.per_s),
                shown(figures.p50_us),
                shown(figures.p99_us)
            );
            found.push(figures);
        }
    }
    for (kind, found) in kinds.iter().zip(&found) {
        let mut figures = Figures::median(found);
        if let (None, Some(per_pair), Some(per_s)) =
            (figures.statements, figures.more.get("statements_per_pair"), figures.per_s)
        {
            figures.statements = Some(per_pair * per_s);
        }
        results.set(scenario, *kind, figures);
    }
    eprintln!("{scenario}: done in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
