//! A part of what `cargo xtask simulate --whole-stack` runs, and whether a seed repeats it.

use crate::run::run;

#[test]
fn what_is_promised_holds_in_each_run() {
    for seed in 1..=200 {
        if let Some(violation) = run(seed, false).violation {
            panic!("seed {seed}: {violation}\n{}", run(seed, true).lines.join("\n"));
        }
    }
}

/// Ids, hashes of keys and the wall clock differ each time.
#[test]
fn a_seed_repeats_each_event() {
    for seed in 1..=30 {
        let (one, other) = (run(seed, true), run(seed, true));
        let differs = one
            .lines
            .iter()
            .zip(&other.lines)
            .find(|(one, other)| one != other);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.lines.len(), other.lines.len(), "seed {seed}");
        assert!(one.lines.len() > 20, "seed {seed} has {} events", one.lines.len());
    }
}
