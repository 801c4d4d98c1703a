//! `cargo xtask test`: runs the chosen steps, also those after one that fails, and ends with one plain line.
//!
//! A test mostly waits for leases, and a compiler only computes. So the tests, and then the torture, run
//! beside the steps that compile, which then have a low priority, and show what they print only when they
//! fail.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use futures_util::stream::{self, StreamExt as _};

use crate::command::Way;
use crate::steps::{Chosen, Passed, Step};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run these steps only. Without it, all run but those on demand.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Arguments for `cargo test`, such as a test's name or `-p dblock-tests`. `-- -- …` reaches the
    /// test programs.
    #[arg(last = true)]
    extra: Vec<String>,
}

/// How many steps that compute run at once: none of them keeps two cores busy for its whole time.
const COMPUTING_AT_ONCE: usize = 2;

/// A step that was run.
#[derive(Debug)]
struct Done {
    step: Step,
    outcome: anyhow::Result<Passed>,
    time: Duration,
}

pub(crate) async fn run(args: Args, install: bool) -> anyhow::Result<ExitCode> {
    let begin = Instant::now();
    let chosen = |step: &Step| match args.only[..] {
        [] => !step.on_demand(),
        _ => *step == Step::Install || args.only.contains(step),
    };
    let chosen = Chosen {
        steps: Step::value_variants().iter().copied().filter(chosen).collect(),
        extra: args.extra,
        install,
    };
    let done = Box::pin(run_all(&chosen)).await;
    eprintln!("{}", summary(&done, begin.elapsed()));
    let failed = done.iter().any(|done| done.outcome.is_err());
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn run_all(chosen: &Chosen) -> Vec<Done> {
    let plan = Plan::of(&chosen.steps, &chosen.extra);
    let mut done = Vec::new();
    for step in plan.first {
        done.push(run_one(step, step.run(Way::Shown, chosen)).await);
    }
    let mut ready = Vec::new();
    for step in plan.waiting {
        title(step, "building");
        let begin = Instant::now();
        ready.push((step, step.make_ready().await, begin.elapsed()));
    }
    // One after the other: on two cores they would starve each other, and they end before the compilers do
    // anyway.
    let waiting = async {
        let mut done = Vec::new();
        for (step, ready, building) in ready {
            let mut one = run_one(step, async { ready?.run().await }).await;
            one.time += building;
            done.push(one);
        }
        done
    };
    // Those that need the same target folder wait for each other in cargo.
    let computing = stream::iter(plan.computing)
        .map(|step| run_one(step, step.run(Way::Beside, chosen)))
        .buffer_unordered(COMPUTING_AT_ONCE)
        .collect::<Vec<_>>();
    let (waited, computed) = tokio::join!(waiting, computing);
    done.extend(waited);
    done.extend(computed);
    done
}

/// Which steps run when.
#[derive(Debug, PartialEq, Eq)]
struct Plan {
    /// One after the other.
    first: Vec<Step>,
    /// Made ready, then run, one after the other.
    waiting: Vec<Step>,
    /// [`COMPUTING_AT_ONCE`], beside those that wait.
    computing: Vec<Step>,
}

impl Plan {
    fn of(chosen: &[Step], extra: &[String]) -> Self {
        let at_once = |step: &&Step| matches!(step, Step::Install | Step::Fmt);
        let (mut first, rest): (Vec<Step>, Vec<Step>) = chosen.iter().partition(at_once);
        let (mut waiting, mut computing): (Vec<Step>, Vec<Step>) =
            rest.into_iter().partition(|step| step.waits());
        // Somebody who chooses tests, or passes words to them, wants to see cargo's own output.
        if !extra.is_empty() {
            first.append(&mut waiting);
        }
        if waiting.is_empty() {
            first.append(&mut computing);
        }
        Self {
            first,
            waiting,
            computing,
        }
    }
}

fn title(step: Step, what: &str) {
    anstream::eprintln!("\n\x1b[1m── {step}: {what}\x1b[0m");
}

async fn run_one(step: Step, run: impl Future<Output = anyhow::Result<Passed>>) -> Done {
    title(step, "running");
    let begin = Instant::now();
    let outcome = run.await;
    let time = begin.elapsed();
    let seconds = time.as_secs_f64();
    match &outcome {
        Ok(_) => anstream::eprintln!("\x1b[1;32m── {step}: passed in {seconds:.1} s\x1b[0m"),
        Err(error) => {
            anstream::eprintln!("{error:#}\n\x1b[1;31m── {step}: FAILED after {seconds:.1} s\x1b[0m");
        }
    }
    Done { step, outcome, time }
}

/// The last line: what passed, what failed, how long each took, and what was left out.
fn summary(done: &[Done], time: Duration) -> String {
    let (mut passed, mut failed) = (Vec::new(), Vec::new());
    let mut left_out = BTreeSet::new();
    for Done { step, outcome, time } in done {
        let took = format!("{} s", time.as_secs());
        match outcome {
            Ok(said) => {
                let details: Vec<_> = said.on.as_deref().into_iter().chain([&*took]).collect();
                passed.push(format!("{step} ({})", details.join(", ")));
                left_out.extend(said.left_out.iter().map(String::as_str));
            }
            Err(_) => failed.push(format!("{step} ({took})")),
        }
    }
    let verdict = if failed.is_empty() { "ok" } else { "FAILED" };
    let mut parts = vec![format!("\nxtask test: {verdict} in {} s", time.as_secs())];
    for (name, steps) in [("failed", failed), ("passed", passed)] {
        if !steps.is_empty() {
            parts.push(format!("{name}: {}", steps.join(", ")));
        }
    }
    if !left_out.is_empty() {
        let left_out = Vec::from_iter(left_out).join(", ");
        parts.push(format!("LEFT OUT, with all that needs it: {left_out}"));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    fn done(step: Step, outcome: anyhow::Result<Passed>) -> Done {
        let time = Duration::from_millis(1900);
        Done { step, outcome, time }
    }

    #[test]
    fn the_summary_names_every_step() {
        let on = Passed {
            on: Some("on PostgreSQL 15.18".to_owned()),
            ..Passed::default()
        };
        let all = [done(Step::Fmt, Ok(Passed::default())), done(Step::Test, Ok(on))];
        assert_eq!(
            summary(&all, Duration::from_millis(2900)),
            "\nxtask test: ok in 2 s; passed: fmt (1 s), test (on PostgreSQL 15.18, 1 s)"
        );
        let all = [
            done(Step::Fmt, Err(anyhow!("x"))),
            done(Step::Doc, Ok(Passed::default())),
        ];
        assert_eq!(
            summary(&all, Duration::ZERO),
            "\nxtask test: FAILED in 0 s; failed: fmt (1 s); passed: doc (1 s)"
        );
    }

    #[test]
    fn the_summary_names_what_was_left_out_once() {
        let mut tests = Passed::default();
        tests.note(
            "LEFT OUT: a_test needs a ZooKeeper server; set X, or run `cargo xtask test`\n\
             test a_test ... ok\n\
             LEFT OUT: another needs a ZooKeeper server; set X, or run `cargo xtask test`\n\
             LEFT OUT: jumps of the clients' clocks, because libfaketime is not installed\n",
        );
        let packages = Passed::without(["zookeeper".to_owned()]);
        let all = [done(Step::Install, Ok(packages)), done(Step::Test, Ok(tests))];
        assert_eq!(
            summary(&all, Duration::ZERO),
            "\nxtask test: ok in 0 s; passed: install (1 s), test (1 s); LEFT OUT, with all that needs it: \
             a ZooKeeper server, jumps of the clients' clocks, zookeeper"
        );
    }

    #[test]
    fn what_waits_runs_beside_what_computes() {
        let plan = Plan::of(Step::value_variants(), &[]);
        assert_eq!(plan.first, [Step::Install, Step::Fmt]);
        assert_eq!(plan.waiting, [Step::Test, Step::Torture]);
        assert_eq!(plan.computing.len(), Step::value_variants().len() - 4);
    }

    #[test]
    fn without_what_waits_all_run_one_after_the_other() {
        let steps = [Step::Install, Step::Fmt, Step::Clippy, Step::Doc];
        let plan = Plan::of(&steps, &[]);
        assert_eq!(plan.first, steps);
        assert!(plan.waiting.is_empty() && plan.computing.is_empty());
    }

    #[test]
    fn chosen_tests_run_by_themselves() {
        let plan = Plan::of(&[Step::Clippy, Step::Test], &["a_test".to_owned()]);
        assert_eq!(plan.first, [Step::Test, Step::Clippy]);
        assert!(plan.waiting.is_empty() && plan.computing.is_empty());
    }
}
