//! The report of a run for people: tables, a page, pictures.

mod markdown;
mod plots;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use comfy_table::{CellAlignment, Table, TableStyle, presets};
use serde_json::{Map, Value, json};

use crate::measure::Figures;
use crate::ratios::{self, Measured, Ratio, Verdict};
use crate::results::Results;
use crate::subject::Kind;

/// The result of each scenario, then the ratios.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for (scenario, subjects) in results.scenarios() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{scenario}: {}", scenario.title());
        text.push_str(&scenario_table(&subjects, presets::UTF8_BORDERS_ONLY));
    }
    text.push_str("\nratios\n");
    text.push_str(&ratio_table(results, presets::UTF8_BORDERS_ONLY));
    text
}

/// Writes the page, the pictures and the figures themselves into a folder.
pub(crate) fn publish(results: &Results, folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(folder.join("table.md"), markdown::page(results))?;
    std::fs::write(folder.join("results.json"), json(results)?)?;
    plots::write(results, folder)
}

/// The figures as a file's text.
pub(crate) fn json(results: &Results) -> anyhow::Result<String> {
    let of_ratios = |figure: fn(Measured) -> f64| -> Map<String, Value> {
        let measured = |ratio: &Ratio| Some((ratio.name.to_owned(), json!(figure(ratio.measured(results)?))));
        ratios::ALL.iter().filter_map(measured).collect()
    };
    let (values, spreads) = (of_ratios(|ratio| ratio.value), of_ratios(|ratio| ratio.spread));
    Ok(serde_json::to_string_pretty(&results.json(&values, &spreads))? + "\n")
}

/// The result of one scenario.
fn scenario_table(subjects: &BTreeMap<Kind, Figures>, style: TableStyle) -> String {
    let mut table = new(
        &[
            "subject",
            "per s",
            "p50 µs",
            "p99 µs",
            "connections",
            "statements/s",
            "a lock is on",
            "",
        ],
        style,
    );
    for (kind, figures) in subjects {
        let numbers = [
            figures.per_s,
            figures.p50_us,
            figures.p99_us,
            figures.connections,
            figures.statements,
        ];
        let mut row = vec![kind.name().to_owned()];
        row.extend(numbers.map(|value| value.map(number).unwrap_or_default()));
        row.push(kind.kept().to_owned());
        row.push(more(figures));
        table.add_row(row);
    }
    align(&mut table, 1..6);
    format!("{table}\n")
}

/// The ratios in a table, each with the times that a caller of ours sees there.
fn ratio_table(results: &Results, style: TableStyle) -> String {
    let header = ["ratio", "value", "±", "must", "aim", "", "p50 µs", "p99 µs"];
    let mut table = new(&header, style);
    for ratio in ratios::ALL {
        let Some(Measured { value, spread }) = ratio.measured(results) else {
            continue;
        };
        let (must, aim) = ratio.bound.map_or_else(Default::default, ratios::Bound::shown);
        let mark = match ratio.bound.map(|bound| bound.judge(value, spread)) {
            Some(Verdict::Aim) => "✓ aim",
            Some(Verdict::Must) => "✓ must",
            Some(Verdict::Missed) => "✗",
            Some(Verdict::TooNoisy) => "too noisy to judge",
            None => "",
        };
        let caller = ratio.seen_by_a_caller(results).unwrap_or_default();
        let time = |time: Option<f64>| time.map(number).unwrap_or_default();
        table.add_row(vec![
            ratio.name.to_owned(),
            number(value),
            if spread > 0.0 {
                number(spread)
            } else {
                String::new()
            },
            must,
            aim,
            mark.to_owned(),
            time(caller.p50_us),
            time(caller.p99_us),
        ]);
    }
    align(&mut table, 1..5);
    align(&mut table, 6..8);
    format!("{table}\n")
}

fn new(header: &[&str], style: TableStyle) -> Table {
    let mut table = Table::new();
    table.load_style(style).set_header(header);
    table
}

fn align(table: &mut Table, columns: std::ops::Range<usize>) {
    for place in columns {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

/// The figures of one round in a line.
pub(crate) fn line(figures: &Figures) -> String {
    let named = [
        (figures.per_s, "", "/s"),
        (figures.p50_us, "p50 ", " µs"),
        (figures.p99_us, "p99 ", " µs"),
        (figures.statements, "", " statements/s"),
    ];
    let mut parts: Vec<_> = named
        .into_iter()
        .filter_map(|(value, before, after)| Some(format!("{before}{:>7}{after}", number(value?))))
        .collect();
    parts.extend(Some(more(figures)).filter(|more| !more.is_empty()));
    parts.join("  ")
}

fn more(figures: &Figures) -> String {
    let parts = figures
        .more
        .iter()
        .map(|(name, value)| format!("{} {}", name.replace('_', " "), number(*value)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Three digits that count, and no exponent.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
