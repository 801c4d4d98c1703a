//! The tables that people read.

use comfy_table::{CellAlignment, Table, TableStyle, presets};

use crate::measure::Figures;
use crate::ratios;
use crate::results::Results;

/// What each scenario found, then the ratios.
pub(crate) fn tables(results: &Results) -> String {
    let mut text = String::new();
    for (scenario, subjects) in results.scenarios() {
        text.push_str(&format!("\n{scenario}: {}\n", scenario.title()));
        let mut table = new(&["subject", "per s", "p50 µs", "p99 µs", "connections", "statements/s", ""]);
        for (kind, figures) in subjects {
            let mut row = vec![kind.name().to_owned()];
            row.extend(
                [figures.per_s, figures.p50_us, figures.p99_us, figures.connections, figures.statements]
                    .map(|value| value.map(number).unwrap_or_default()),
            );
            row.push(more(figures));
            table.add_row(row);
        }
        align(&mut table, 1..6);
        text.push_str(&format!("{table}\n"));
    }
    text.push_str("\nratios\n");
    text.push_str(&ratio_table(results, presets::UTF8_BORDERS_ONLY));
    text
}

/// The ratios in a table.
pub(crate) fn ratio_table(results: &Results, style: TableStyle) -> String {
    let mut table = new(&["ratio", "value", "must", "aim", ""]);
    table.load_style(style);
    for ratio in ratios::ALL {
        let Some(value) = ratio.value(results) else { continue };
        let (must, aim) = ratio.bound.map_or_else(Default::default, ratios::Bound::shown);
        let mark = match ratio.bound.map(|bound| bound.reached(value)) {
            Some((_, true)) => "✓ aim",
            Some((true, false)) => "✓ must",
            Some((false, false)) => "✗",
            None => "",
        };
        table.add_row(vec![ratio.name.to_owned(), number(value), must, aim, mark.to_owned()]);
    }
    align(&mut table, 1..4);
    format!("{table}\n")
}

fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY).set_header(header);
    table
}

fn align(table: &mut Table, columns: std::ops::Range<usize>) {
    for place in columns {
        if let Some(column) = table.column_mut(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}

fn more(figures: &Figures) -> String {
    let parts = figures.more.iter().map(|(name, value)| format!("{} {}", name.replace('_', " "), number(*value)));
    parts.collect::<Vec<_>>().join(", ")
}

/// Three digits that count, and no exponent.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
