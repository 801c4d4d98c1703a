//! `cargo xtask simulate`: the machine of dblock-core, with a world around it: several processes, a store made
//! of its rules, a network, clocks and faults, all driven by a tape of choices. A schedule takes well under a
//! millisecond, and its seed repeats it.
//!
//! The machine is the one that ships. The rest is replaced: the engine's shell by `process` and `driver`,
//! the database by `store`, the network by `network`, and the application by `callers`, `bodies` and `runs`.
//! `checks` and `always` say what must hold, and `sometimes` what must have come.
//!
//! What there is (`process`, `store`, `batch`, `caller`, `ledger`) knows no `world`. What happens is the world's.

mod always;
mod answers;
mod batch;
mod bodies;
mod caller;
mod callers;
mod checks;
mod driver;
mod faults;
mod ledger;
mod network;
mod plan;
mod process;
mod runs;
mod schedule;
mod show;
mod shrink;
mod small;
mod sometimes;
mod store;
mod takes;
mod tape;
mod tickets;
mod world;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use schedule::{events, explain, run};
use shrink::{kind, shrink};
use sometimes::Tally;

/// How often it says how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// In so many schedules each state must come that matters.
const ENOUGH: u64 = 100_000;

/// How long a failing schedule is made simpler.
const SHRINK_FOR: Duration = Duration::from_mins(1);

struct Args {
    seeds: u64,
    first: u64,
    digest: bool,
    /// Go on after the first failure, and show only what failed how often.
    all: bool,
    /// Only say which schedule fails first, and how.
    brief: bool,
    /// All schedules of small worlds with so many choices other than the simplest one, instead of seeds.
    small: Option<usize>,
}

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!(
            "usage: simulate [--seeds COUNT] [--seed FIRST] [--digest] [--all] [--brief] [--small CHOICES]"
        );
        return ExitCode::FAILURE;
    };
    // A panic of the core is a failure like others.
    std::panic::set_hook(Box::new(|_| {}));
    let good = if let Some(most) = args.small {
        small_worlds(most, args.brief)
    } else if args.digest {
        digest(&args)
    } else {
        schedules(&args)
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn args() -> Option<Args> {
    let mut args = Args {
        seeds: 1_000_000,
        first: 1,
        digest: false,
        all: false,
        brief: false,
        small: None,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next()?.replace('_', "").parse().ok();
        match word.as_str() {
            "--seeds" => args.seeds = number()?,
            "--seed" => args.first = number()?,
            "--digest" => args.digest = true,
            "--all" => args.all = true,
            "--brief" => args.brief = true,
            "--small" => args.small = usize::try_from(number()?).ok(),
            _ => return None,
        }
    }
    Some(args)
}

fn schedules(args: &Args) -> bool {
    let begin = Instant::now();
    let mut told = begin;
    let mut events = 0;
    let mut failures: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let mut tally = Tally::default();
    for seed in args.first..args.first + args.seeds {
        match run(seed) {
            Ok((count, came)) => {
                events += u64::from(count);
                tally.add(came);
            }
            Err(violation) if args.brief => {
                println!("seed {seed}: {violation}");
                return false;
            }
            Err(_) if !args.all => {
                show(seed);
                return false;
            }
            Err(violation) => failures.entry(kind(&violation)).or_insert((0, seed)).0 += 1,
        }
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            say(seed - args.first + 1, events, begin.elapsed());
        }
    }
    say(args.seeds, events, begin.elapsed());
    for (violation, (count, seed)) in &failures {
        println!("{count} times, first at seed {seed}: {violation}");
    }
    failures.is_empty() && (args.brief || came_often(&tally, args.seeds))
}

/// Says in how many schedules each state came that matters. Returns whether none is missing where there were enough of them.
fn came_often(tally: &Tally, schedules: u64) -> bool {
    for (state, count) in tally.counts() {
        println!("{count:>9}  {state}");
    }
    let missing: Vec<_> = tally.counts().filter(|(_, count)| *count == 0).collect();
    for (state, _) in &missing {
        println!("not once: {state}. Nothing was shown of what comes then");
    }
    missing.is_empty() || schedules < ENOUGH
}

/// All schedules of the small worlds.
fn small_worlds(most: usize, brief: bool) -> bool {
    let begin = Instant::now();
    let mut all = 0;
    for (wrong, fault) in small::WORLDS {
        match small::run_all(fault, most) {
            Ok(schedules) => {
                all += schedules;
                println!("{wrong}: {schedules} schedules");
            }
            Err(failure) => {
                if !brief {
                    failure.events.iter().for_each(|line| println!("{line}"));
                }
                println!("{wrong}: {}", failure.violation);
                return false;
            }
        }
    }
    println!("{all} schedules in {:.0} s", begin.elapsed().as_secs_f64());
    true
}

/// One number for the events of all schedules: a core that behaves as before has the same.
fn digest(args: &Args) -> bool {
    let mut hasher = DefaultHasher::new();
    for seed in args.first..args.first + args.seeds {
        events(seed).hash(&mut hasher);
    }
    println!("digest of {} schedules: {:016x}", args.seeds, hasher.finish());
    true
}

fn say(schedules: u64, events: u64, time: Duration) {
    println!(
        "{schedules} schedules, {events} events in {:.0} s",
        time.as_secs_f64()
    );
}

fn show(seed: u64) {
    let Some(failure) = explain(seed) else { return };
    let length = failure.tape.len();
    println!(
        "seed {seed} fails after {length} choices: {}; making it simpler …",
        failure.violation
    );
    let failure = shrink(failure, SHRINK_FOR);
    for line in &failure.events {
        println!("{line}");
    }
    println!("\n{}\ntape: {:?}", failure.violation, failure.tape);
    println!("again: cargo xtask simulate --seed {seed} --seeds 1");
}
