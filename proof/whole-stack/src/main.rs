//! `cargo xtask simulate --whole-stack`: dblock as it ships, its driver too, on simulated time. Each process of a run is a
//! manager whose store is a [`wire`] to one memory store. The [`network`] between them delays, loses and repeats what is
//! sent; processes die, leave, and are cut off. [`caller`] uses the public face, and [`calling`] has what must hold.
//!
//! All runs on one thread, on tokio's paused clock: time passes when nobody has anything to do. So a run takes
//! milliseconds, and its seed repeats it.

mod caller;
mod calling;
mod chance;
mod checks;
mod message;
mod network;
mod plan;
mod process;
mod run;
mod server;
mod show;
mod visit;
mod wire;
mod world;

#[cfg(test)]
mod tests;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use run::run;

/// How often it says how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// A run that takes so long hangs without letting time pass.
const HANGS: Duration = Duration::from_secs(20);

struct Args {
    seeds: u64,
    first: u64,
    /// Print what happens.
    trace: bool,
}

fn main() -> ExitCode {
    let Some(args) = args() else {
        eprintln!("usage: dblock-whole-stack [--seeds COUNT] [--seed FIRST] [--trace]");
        return ExitCode::FAILURE;
    };
    thread::spawn(watch);
    let begin = Instant::now();
    let (mut told, mut events) = (begin, 0);
    for seed in args.first..args.first + args.seeds {
        SEED.store(seed, Ordering::Relaxed);
        let shown = run(seed, args.trace);
        shown.lines.iter().for_each(|line| println!("{line}"));
        events += shown.events;
        if let Some(violation) = shown.violation {
            show(seed, &violation);
            return ExitCode::FAILURE;
        }
        if told.elapsed() > PROGRESS {
            told = Instant::now();
            say(seed - args.first + 1, events, begin);
        }
    }
    say(args.seeds, events, begin);
    ExitCode::SUCCESS
}

fn args() -> Option<Args> {
    let mut args = Args {
        seeds: 10_000,
        first: 1,
        trace: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || words.next()?.replace('_', "").parse().ok();
        match word.as_str() {
            "--seeds" => args.seeds = number()?,
            "--seed" => args.first = number()?,
            "--trace" => args.trace = true,
            _ => return None,
        }
    }
    Some(args)
}

/// The seed that runs.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Ends the program when a run hangs.
fn watch() {
    let mut last = (0, Instant::now());
    loop {
        thread::sleep(Duration::from_secs(1));
        let seed = SEED.load(Ordering::Relaxed);
        if seed != last.0 {
            last = (seed, Instant::now());
        } else if last.1.elapsed() > HANGS {
            println!("seed {seed}: hangs: no time passes\nagain: {AGAIN} --seed {seed} --seeds 1");
            std::process::exit(1);
        }
    }
}

const AGAIN: &str = "cargo xtask simulate --whole-stack";

fn say(runs: u64, events: u64, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    println!("{runs} runs, {events} events in {seconds:.0} s");
}

/// Runs the seed once more, and prints what happens.
fn show(seed: u64, violation: &str) {
    for line in run(seed, true).lines {
        println!("{line}");
    }
    println!("\nseed {seed}: {violation}\nagain: {AGAIN} --seed {seed} --seeds 1");
}
