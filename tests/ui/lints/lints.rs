//! The attribute sets off no lint and silences none: the same file, with and without it, gets the same
//! warnings on the same lines.

use std::collections::BTreeSet;
use std::process::Command;

/// A lint and the line that it points at.
type Warning = (String, u64);

/// Clippy's warnings about the cases.
fn warnings(features: &str) -> BTreeSet<Warning> {
    let output = Command::new(env!("CARGO"))
        .args(["clippy", "--quiet", "--message-format=json"])
        .args(["--example", "lint-cases", "--features", features])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_remove("RUSTFLAGS")
        .output()
        .expect("cargo clippy runs");
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let messages: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a message of cargo"))
        .collect();
    let rendered = |level: &str| -> String {
        let chosen = messages
            .iter()
            .map(|message| &message["message"])
            .filter(|message| message["level"] == level);
        chosen
            .filter_map(|message| message["rendered"].as_str())
            .collect()
    };
    assert!(
        output.status.success(),
        "{}{}",
        rendered("error"),
        String::from_utf8_lossy(&output.stderr)
    );
    let mut found = BTreeSet::new();
    for message in &messages {
        let message = &message["message"];
        let Some(lint) = message["code"]["code"].as_str() else {
            continue;
        };
        for span in message["spans"].as_array().into_iter().flatten() {
            let in_cases = span["file_name"]
                .as_str()
                .is_some_and(|file| file.ends_with("cases.rs"));
            if in_cases && span["is_primary"] == true {
                found.insert((lint.to_owned(), span["line_start"].as_u64().expect("a line")));
            }
        }
    }
    found
}

/// What a plain function loses: with a lock it cannot be `const`, and Clippy does not judge arguments that a closure takes.
const OF_PLAIN_FUNCTIONS: [&str; 2] = ["clippy::missing_const_for_fn", "clippy::needless_pass_by_value"];

#[test]
fn no_lint_fires_or_falls_silent() {
    let bare = warnings("dblock-ui-tests/lint-cases");
    let locked = warnings("dblock-ui-tests/lint-cases,dblock-ui-tests/locked");
    let lints: BTreeSet<_> = bare.iter().map(|(lint, _)| lint.as_str()).collect();
    println!("lints tried: {lints:?}");
    assert!(lints.len() > 30, "the cases set off few lints: {lints:?}");
    let fired: Vec<_> = locked.difference(&bare).collect();
    let cases = include_str!("cases.rs").lines();
    let plain = 1 + cases.take_while(|line| *line != "pub mod plain {").count() as u64;
    let may_fall_silent =
        |(lint, line): &&Warning| *line > plain && OF_PLAIN_FUNCTIONS.contains(&lint.as_str());
    let silenced = bare.difference(&locked);
    let silenced: Vec<_> = silenced.filter(|warning| !may_fall_silent(warning)).collect();
    assert!(
        fired.is_empty() && silenced.is_empty(),
        "fired: {fired:#?}\nsilenced: {silenced:#?}"
    );
}
