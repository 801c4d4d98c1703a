//! `cargo xtask test`: runs the steps one after the other, all of them even when one fails, and ends with
//! one plain line.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::steps::{Outcome, Step};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these steps only.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Arguments for `cargo test`, such as a test's name or `-p dblock-tests`. `-- -- …` reaches the
    /// test programs.
    #[arg(last = true)]
    extra: Vec<String>,
}

/// A step that was run.
#[derive(Debug)]
struct Done {
    step: Step,
    outcome: anyhow::Result<Outcome>,
}

pub(crate) async fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    let mut done = Vec::new();
    for step in Step::ALL
        .into_iter()
        .filter(|step| args.only.is_empty() || args.only.contains(step))
    {
        done.push(run_one(step, &args.extra).await);
    }
    eprintln!("{}", summary(&done, begin.elapsed()));
    let failed = done.iter().any(|done| done.outcome.is_err());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn run_one(step: Step, extra: &[String]) -> Done {
    anstream::eprintln!("\n\x1b[1m── {step}\x1b[0m");
    let begin = Instant::now();
    let outcome = step.run(extra).await;
    let time = begin.elapsed().as_secs_f64();
    match &outcome {
        Ok(Outcome::Passed(_)) => anstream::eprintln!("\x1b[1;32m── {step}: passed in {time:.1} s\x1b[0m"),
        Ok(Outcome::Skipped(why)) => anstream::eprintln!("\x1b[1;33m── {step}: SKIPPED: {why}\x1b[0m"),
        Err(error) => {
            anstream::eprintln!("{error:#}\n\x1b[1;31m── {step}: FAILED after {time:.1} s\x1b[0m");
        }
    }
    Done { step, outcome }
}

/// The last line: what passed, what was left out, what failed.
fn summary(done: &[Done], time: Duration) -> String {
    let mut passed = Vec::new();
    let mut skipped = Vec::new();
    let mut failed = Vec::new();
    for Done { step, outcome } in done {
        match outcome {
            Ok(Outcome::Passed(None)) => passed.push(step.to_string()),
            Ok(Outcome::Passed(Some(on))) => passed.push(format!("{step} ({on})")),
            Ok(Outcome::Skipped(why)) => skipped.push(format!("{step} ({why})")),
            Err(_) => failed.push(step.to_string()),
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let mut parts = vec![format!("\nxtask test: {verdict} in {} s", time.as_secs())];
    for (name, steps) in [("failed", failed), ("skipped", skipped), ("passed", passed)] {
        if !steps.is_empty() {
            parts.push(format!("{name}: {}", steps.join(", ")));
        }
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn done(step: Step, outcome: anyhow::Result<Outcome>) -> Done {
        Done { step, outcome }
    }

    #[test]
    fn the_summary_names_every_step() {
        let passed = || Ok(Outcome::Passed(None));
        let on = Ok(Outcome::Passed(Some("on PostgreSQL 15.18".to_owned())));
        assert_eq!(
            summary(
                &[done(Step::Fmt, passed()), done(Step::Test, on)],
                Duration::from_millis(2900)
            ),
            "\nxtask test: ok in 2 s; passed: fmt, test (on PostgreSQL 15.18)"
        );
        let skipped = Ok(Outcome::Skipped("not there".to_owned()));
        let all = [
            done(Step::Fmt, Err(anyhow!("x"))),
            done(Step::Quickstart, skipped),
            done(Step::Doc, passed()),
        ];
        assert_eq!(
            summary(&all, Duration::ZERO),
            "\nxtask test: FAILED in 0 s; failed: fmt; skipped: quickstart (not there); passed: doc"
        );
    }
}
