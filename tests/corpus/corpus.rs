//! The attribute warns of nothing, silences no warning, and drops in the order of the bare function: over
//! hundreds of functions, which `build.rs` puts together from patterns, paths, shadowed names and macros.
//!
//! Both forms are compiled under `deny(warnings)`. A function that shall warn expects it (`#[expect]`), bare and
//! under the attribute. An argument that the body does not use is given to `on_busy`, which does not compile if
//! the body has it.
#![deny(warnings)]
#![allow(
    clippy::all,
    clippy::pedantic,
    reason = "the functions are about names, not about style"
)]

use dblock_corpus_tests::*;

/// A function, bare and under the attribute.
struct Case {
    body: &'static str,
    bare: fn() -> Call,
    locked: fn() -> Call,
    /// The arguments that the body does not use.
    unused: &'static [&'static str],
}

include!(concat!(env!("OUT_DIR"), "/functions.rs"));

/// Arguments that the body does not use are dropped behind the release, and what a pattern leaves.
fn expected(case: &Case, bare: &[&'static str], begun: bool) -> Vec<&'static str> {
    if !begun {
        return bare.to_vec();
    }
    let is_unused = |name: &&&str| case.unused.contains(*name) || **name == "rest";
    let inside = bare.iter().filter(|name| !is_unused(name));
    let behind = bare.iter().filter(is_unused);
    inside.chain([&"release"]).chain(behind).copied().collect()
}

#[test]
fn everything_is_dropped_in_the_order_of_the_bare_function() {
    assert!(CASES.len() >= 500, "{}", CASES.len());
    let mut wrong = Vec::new();
    for case in CASES {
        // Never polled; dropped while the body waits; to its end.
        for polls in 0..=2 {
            let bare = dropped(case.bare, polls);
            let expected = expected(case, &bare, polls > 0);
            let locked = dropped(case.locked, polls);
            if locked != expected {
                wrong.push(format!(
                    "{polls} polls: {locked:?}, not {expected:?}\n{}",
                    case.body
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
