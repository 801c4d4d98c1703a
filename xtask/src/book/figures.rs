//! Measured figures in pages. `0.34<!-- keys64_vs_rslock -->` is a ratio of the last full run of the benches, and
//! `71,000<!-- keys256/dblock-postgres/per_s -->` a figure of one subject in a scenario.

use std::path::Path;

use anyhow::Context as _;
use serde_json::Value;

use super::Pages;

const RESULTS: &str = "docs/benchmarks/results.json";
const TABLE: &str = "docs/benchmarks/table.md";

/// The page that says what the figures mean.
const PAGE: &str = "docs/performance.md";

pub(crate) fn problems(top: &Path, pages: &Pages) -> anyhow::Result<Vec<String>> {
    let read = |path: &str| std::fs::read_to_string(top.join(path)).context(path.to_owned());
    let results = serde_json::from_str(&read(RESULTS)?)?;
    let mut problems = Vec::new();
    for page in pages.values() {
        let wrong = wrong(&page.text, &results).into_iter();
        problems.extend(wrong.map(|(line, what)| format!("{}:{line}: {what}", page.path)));
    }
    let page = pages.get(PAGE).context(PAGE)?;
    let table = read(TABLE)?;
    let untold = untold(&table, &page.text).into_iter();
    problems.extend(untold.map(|ratio| format!("{PAGE} does not say that {ratio} misses its bound")));
    Ok(problems)
}

/// The figures that are not those of the results, each with its line.
fn wrong(text: &str, results: &Value) -> Vec<(usize, String)> {
    let wrong = |(at, number, name): (usize, &str, &str)| {
        let value = match *name.split('/').collect::<Vec<_>>() {
            [scenario, subject, figure] => &results["scenarios"][scenario][subject][figure],
            _ => &results["ratios"][name],
        };
        let fault = match value.as_f64() {
            Some(value) if agree(number, value) => return None,
            Some(value) => format!("{number} is not what {RESULTS} says of {name}: {value}"),
            None => format!("{RESULTS} has no {name}"),
        };
        Some((text[..at].matches('\n').count() + 1, fault))
    };
    figures(text).filter_map(wrong).collect()
}

/// The figures of a page: where the name stands, the number, the name.
fn figures(text: &str) -> impl Iterator<Item = (usize, &str, &str)> {
    text.match_indices("<!-- ").filter_map(|(at, begin)| {
        let before = &text[..at];
        let rest = before.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
        let (name, _) = text[at + begin.len()..].split_once(" -->")?;
        (rest.len() < at).then(|| (at, &before[rest.len()..], name))
    })
}

/// A decimal number agrees to its last digit, a whole one to a fortieth: its zeros say little.
fn agree(number: &str, value: f64) -> bool {
    let Ok(shown) = number.replace(',', "").parse::<f64>() else {
        return false;
    };
    let near = match number.split_once('.') {
        Some((_, decimals)) => {
            0.501 / 10_f64.powf(f64::from(u8::try_from(decimals.len()).unwrap_or(u8::MAX)))
        }
        None => shown / 40.0,
    };
    (value - shown).abs() <= near
}

/// The ratios that miss their bound according to the table, and that the page has no figure of.
fn untold<'t>(table: &'t str, page: &str) -> Vec<&'t str> {
    let missed = table.lines().filter(|line| line.contains("| ✗ "));
    let names = missed.filter_map(|line| line.split('|').nth(1).map(str::trim));
    names
        .filter(|ratio| !figures(page).any(|(_, _, name)| name == *ratio))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_that_is_not_the_measured_one_is_named_with_its_line() {
        let results = json!({
            "ratios": { "one": 0.337, "two": 1.5 },
            "scenarios": { "keys": { "us": { "per_s": 70_600.0 } } },
        });
        let good = "it is 0.34<!-- one -->, 1.5<!-- two -->, 71,000<!-- keys/us/per_s --> a second\n<!-- no figure -->";
        assert!(wrong(good, &results).is_empty());
        let bad = "0.33<!-- one -->\n1.5<!-- other -->\n60,000<!-- keys/us/per_s -->";
        let lines: Vec<_> = wrong(bad, &results).into_iter().map(|(line, _)| line).collect();
        assert_eq!(lines, [1, 2, 3]);
    }

    #[test]
    fn each_missed_bound_is_told() {
        let table = "| ratio | value | |\n| one | 0.34 | ✗ |\n| two | 1.5 | ✓ aim |\n| three | 2.0 | ✗ |\n";
        assert_eq!(untold(table, "one is 0.34<!-- one -->; three is 2.0"), ["three"]);
    }
}
