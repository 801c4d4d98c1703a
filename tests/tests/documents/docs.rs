//! Each test that docs/evidence.md names exists.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

/// All Rust source of `folder`, in one text.
fn source(folder: &Path, text: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            source(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            *text += &std::fs::read_to_string(path).unwrap();
        }
    }
}

/// The last parts of what stands between backticks and looks like the name of a test: `file::its_name`, or
/// words.
fn names(document: &str) -> impl Iterator<Item = &str> {
    let quoted = document.split('`').skip(1).step_by(2);
    // `rules::` is the contract's own module.
    let tests = quoted.filter(|name| !name.starts_with("rules::"));
    let last = tests.map(|name| name.rsplit("::").next().unwrap());
    let is_name = |name: &&str| {
        name.chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let is_setting = |name: &str| {
        ["innodb_", "wal_", "pg_", "distributed_lock_"]
            .iter()
            .any(|its| name.starts_with(its))
    };
    last.filter(is_name)
        .filter(move |name| name.matches('_').count() > 1 && !is_setting(name))
}

#[test]
fn every_test_that_is_named_is_there() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    for folder in [
        "tests/support",
        "tests/tests",
        "apps/axum/tests",
        "apps/cli/tests",
        "dblock-conformance/src",
        "dblock-core/src",
        "proof/torture/src",
        "proof/model/tests",
        "proof/whole-stack/src",
    ] {
        source(&top.join(folder), &mut text);
    }
    let document = std::fs::read_to_string(top.join("docs/evidence.md")).unwrap();
    let mut found = 0;
    for name in names(&document) {
        // A macro makes a test of a line that begins with its name.
        let is_test = text.contains(&format!("fn {name}(")) || text.contains(&format!("\n    {name}: "));
        let is_flaw = top.join(format!("proof/flaws/{name}.patch")).exists();
        assert!(is_test || is_flaw, "no test and no flaw is called {name}");
        found += 1;
    }
    assert!(found > 50, "only {found} names were found");
}
