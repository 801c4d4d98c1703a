//! The dashboard, the alerts and docs/operations.md agree with each other and with the metrics.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use dblock::{LockManager, LockOptions, ManagerSettings};
use dblock_servers::promtool;

use crate::exposition::Exposition;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn text(path: &str) -> String {
    std::fs::read_to_string(top().join(path)).unwrap()
}

/// The expressions of the dashboard.
fn dashboard() -> Vec<String> {
    fn collect(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                let texts = ["expr", "query"]
                    .iter()
                    .filter_map(|name| fields.get(*name)?.as_str());
                found.extend(texts.filter(|text| text.contains('(')).map(str::to_owned));
                fields.values().for_each(|value| collect(value, found));
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    collect(
        &serde_json::from_str(&text("ops/grafana-dashboard.json")).unwrap(),
        &mut found,
    );
    found
}

/// The values of a field of the alerts, in their order.
fn alerts(field: &str) -> Vec<String> {
    let start = format!("{field}: ");
    let lines = text("ops/alerts.yml");
    let lines = lines
        .lines()
        .map(|line| line.trim_start().trim_start_matches("- "));
    lines
        .filter_map(|line| line.strip_prefix(&start).map(str::to_owned))
        .collect()
}

/// The words of a text that begin like our metrics.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words
        .filter(|word| word.starts_with("dblock_") && word.len() > "dblock_".len())
        .collect()
}

/// The labels in an expression: before `=`, `=~`, `!=`, and in `by (…)`.
fn labels(expression: &str) -> BTreeSet<&str> {
    let mut found: BTreeSet<_> = expression
        .split("by (")
        .skip(1)
        .flat_map(|rest| rest.split(')').next().unwrap().split(", "))
        .collect();
    for inside in expression
        .split('{')
        .skip(1)
        .filter(|rest| !rest.starts_with('{'))
    {
        let inside = inside.split('}').next().unwrap();
        let pairs = inside.split("\",").filter(|pair| !pair.is_empty());
        found.extend(pairs.map(|pair| pair.split(['=', '!']).next().unwrap().trim()));
    }
    found.remove("le");
    found
}

/// Checks all names and labels against what an exporter has shown.
pub(crate) fn fit(seen: &Exposition) {
    let expressions = [dashboard(), alerts("expr")].concat();
    assert!(expressions.len() > 15, "only {} expressions", expressions.len());
    for expression in &expressions {
        let used = names(expression);
        assert!(!used.is_empty(), "no metric in {expression}");
        for name in used {
            assert!(seen.names().contains(name), "{name} does not exist: {expression}");
        }
        for label in labels(expression) {
            assert!(seen.labels().contains(label), "no label {label}: {expression}");
        }
    }
    let document = text("docs/operations.md");
    let section = document
        .split("\n## ")
        .find(|part| part.starts_with("Metrics"))
        .unwrap();
    let documented: BTreeSet<&str> = names(section);
    assert_eq!(seen.metrics(), documented, "docs/operations.md lists the metrics");
    let described: BTreeSet<&str> = seen.described.iter().map(|name| &**name).collect();
    assert_eq!(described, documented, "each metric has a description");
    for value in seen.labels().into_iter().filter(|label| *label != "le") {
        assert!(
            section.contains(&format!("`{value}`")),
            "{value} is not documented"
        );
    }
}

/// The anchor that GitHub gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_');
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_alert_leads_to_its_section() {
    let document = text("docs/operations.md");
    let headings: BTreeSet<String> = document
        .lines()
        .filter(|line| line.starts_with("##"))
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect();
    let names = alerts("alert");
    let runbooks = alerts("runbook_url");
    assert!(names.len() > 5);
    assert_eq!(names.len(), runbooks.len(), "each alert has a runbook_url");
    assert_eq!(names.len(), alerts("summary").len(), "each alert has a summary");
    for (name, runbook) in names.iter().zip(&runbooks) {
        let place = runbook
            .trim_matches('"')
            .strip_prefix("docs/operations.md#")
            .unwrap();
        assert!(
            headings.contains(place),
            "{name} leads to {place}, which is not in {headings:?}"
        );
        assert_eq!(place, name.to_lowercase(), "each alert has a section of its own");
    }
}

/// The file that a service reads.
#[derive(serde::Deserialize)]
struct Config {
    locks: ManagerSettings,
    settle: LockOptions,
}

#[tokio::test]
async fn the_documents_configuration_is_read() {
    let document = text("docs/operations.md");
    let example = document
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let config: Config = toml::from_str(example).unwrap();
    let locks = LockManager::builder_for_url("memory:").unwrap();
    let locks = locks.settings(config.locks).build().await.unwrap();
    let guard = locks
        .lock("order:42")
        .options(&config.settle.function("configured"))
        .acquire()
        .await
        .unwrap();
    assert_eq!(guard.full_key(), "billing:order:42");
    // The messages that the document shows.
    for (line, message) in [
        (
            "[settle]\ntll = \"30s\"",
            "unknown field `tll`, expected one of `ttl`, `wait`",
        ),
        (
            "[settle]\nttl = 30",
            "the unit is missing; write \"30s\" for seconds or \"30ms\" for milliseconds",
        ),
    ] {
        let refused = toml::from_str::<Config>(line).err().unwrap().to_string();
        assert!(
            refused.contains(message) && document.contains(message),
            "{refused}"
        );
    }
}

#[test]
fn prometheus_takes_the_alerts() {
    let Some(promtool) = promtool() else {
        dblock_tests::left_out(
            "promtool",
            "install Debian's package `prometheus`, or run `cargo xtask test`",
        );
        return;
    };
    let output = Command::new(promtool)
        .args(["check", "rules", "ops/alerts.yml"])
        .current_dir(top())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}
