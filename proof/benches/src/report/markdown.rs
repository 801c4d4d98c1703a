//! The published table.

use std::fmt::Write as _;

use comfy_table::presets;

use super::{number, ratio_table, scenario_table};
use crate::results::Results;

/// Everything, for `docs/benchmarks/table.md`.
pub(crate) fn page(results: &Results) -> String {
    let mut text = "# Figures\n\n\
        Written by `cargo xtask bench`; do not edit. How each is made: [performance](../performance.md).\n\n"
        .to_owned();
    text.push_str(&ratio_table(results, presets::ASCII_MARKDOWN));
    text.push_str(
        "\n± is twice the standard error of the value, from how far the rounds differ. A value is too noisy to judge \
         when its must lies within. The times are what a caller of dblock sees there.\n",
    );
    text.push_str("\n## Scenarios\n\nMedians over the rounds.\n");
    for (scenario, subjects) in results.scenarios() {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\n### {scenario}\n\n{}.\n\n{}",
            scenario.title(),
            scenario_table(&subjects, presets::ASCII_MARKDOWN)
        );
    }
    text.push_str("\n## How the subjects were used\n\n");
    for kind in results.subjects() {
        let _ = writeln!(text, "- **{}**: {}", kind.name(), kind.settings());
    }
    text.push_str("\n## Machine\n\n");
    list(&mut text, "", &results.machine);
    text
}

fn list(text: &mut String, indent: &str, entries: &serde_json::Map<String, serde_json::Value>) {
    for (name, value) in entries {
        let _ = match value {
            serde_json::Value::Object(inner) => {
                let _ = writeln!(text, "{indent}- {name}:");
                list(text, &format!("{indent}  "), inner);
                Ok(())
            }
            serde_json::Value::String(value) => writeln!(text, "{indent}- {name}: {value}"),
            serde_json::Value::Number(value) => {
                writeln!(
                    text,
                    "{indent}- {name}: {}",
                    value.as_f64().map_or_else(String::new, plain)
                )
            }
            value => writeln!(text, "{indent}- {name}: {value}"),
        };
    }
}

/// Whole numbers without a fraction.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        number(value)
    }
}
