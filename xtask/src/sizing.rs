//! `cargo xtask sizing`: how much a server carries, from the measured figures and a small simulation. Writes
//! the tables of `docs/sizing.md`.

mod costs;
mod server;

use std::process::ExitCode;

use anyhow::Context as _;

use costs::Costs;
use server::{Load, limit};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sizing.md");

/// The tables stand between these lines.
const BEGIN: &str = "<!-- written by `cargo xtask sizing` -->\n";
const END: &str = "<!-- end -->\n";

const PROCESSES: [u32; 5] = [1, 10, 100, 1_000, 10_000];

const SHARDS: [f64; 4] = [1.0, 2.0, 4.0, 8.0];

/// A process renews a lease so often within its ttl, and renewals fall on a grid of so many points within it.
const RENEWALS: f64 = 3.0;
const GRID: f64 = 16.0;

/// The most requests in a statement.
const MAX_BATCH: f64 = 1024.0;

pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let stores = Costs::measured()?;
    let tables = [
        costs_table(&stores),
        locks_table(&stores),
        held_table(&stores),
        waiters_table(&stores),
    ];
    let tables = tables.join("\n");
    let page = std::fs::read_to_string(PAGE).context("docs/sizing.md")?;
    let (before, rest) = page
        .split_once(BEGIN)
        .context("docs/sizing.md has no line that begins the tables")?;
    let (_, after) = rest
        .split_once(END)
        .context("docs/sizing.md has no line that ends the tables")?;
    std::fs::write(PAGE, format!("{before}{BEGIN}\n{tables}\n{END}{after}"))?;
    anstream::println!("{tables}");
    Ok(ExitCode::SUCCESS)
}

fn row(cells: impl IntoIterator<Item = String>) -> String {
    let cells: Vec<String> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let head_row = row(head.iter().map(|cell| (*cell).to_owned()));
    let line = row(head.iter().map(|_| "---".to_owned()));
    let rows: String = rows.into_iter().map(row).collect();
    format!("{head_row}{line}{rows}")
}

/// With a comma before each three digits, and no more digits than mean something.
fn number(value: f64) -> String {
    let step = 10_f64.powf(value.max(1.0).log10().floor() - 1.0).max(1.0);
    let digits = format!("{:.0}", (value / step).round() * step);
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A share of one server, or how many of them.
fn share(value: f64) -> String {
    if value < 0.01 {
        "under 1 %".into()
    } else if value <= 0.7 {
        format!("{:.0} %", value * 100.0)
    } else {
        // A server should not work for more than this part of the time.
        format!("{} servers", number((value / 0.7).ceil()))
    }
}

fn costs_table(stores: &[Costs]) -> String {
    let rows = stores.iter().map(|store| {
        let micros = |value: f64| format!("{value:.0} µs");
        let parts = [
            micros(store.flush),
            micros(store.statement),
            format!("{:.1} µs", store.row),
        ];
        [store.name.to_owned()].into_iter().chain(parts).collect()
    });
    let head = [
        "measured cost of",
        "a commit to disk",
        "a statement",
        "a row in it",
    ];
    table(&head, rows)
}

fn locks_table(stores: &[Costs]) -> String {
    let shards = SHARDS.map(|shards| format!("{shards} shards").replace("1 shards", "1 server"));
    let mut head = vec!["locks a second", "processes"];
    head.extend(shards.iter().map(String::as_str));
    head.push("sessions on each server");
    let rows = stores.iter().flat_map(|store| {
        PROCESSES.map(|processes| {
            let one = limit(store, processes);
            let mut cells = vec![store.name.to_owned(), number(processes.into())];
            cells.extend(SHARDS.map(|shards| number(one * shards)));
            cells.push(number(f64::from(processes) * store.sessions));
            cells
        })
    });
    table(&head, rows)
}

fn held_table(stores: &[Costs]) -> String {
    let loads = [
        (10_000.0, 10.0),
        (100_000.0, 100.0),
        (1_000_000.0, 1_000.0),
        (1_000_000.0, 10_000.0),
    ];
    let ttls = [30.0, 300.0, 3_600.0];
    let rows = stores.iter().flat_map(|store| {
        loads.map(|(leases, processes)| {
            let mut cells = vec![store.name.to_owned(), number(leases), number(processes)];
            cells.extend(ttls.map(|ttl| share(store.share(renewals(leases, processes, ttl)))));
            cells
        })
    });
    let head = ["held", "leases", "processes", "ttl 30 s", "ttl 5 min", "ttl 1 h"];
    table(&head, rows)
}

/// The renewals of leases that are spread over processes.
fn renewals(leases: f64, processes: f64, ttl: f64) -> Load {
    let rows = leases * RENEWALS / ttl;
    // Those of one process that fall on one point of the grid share statements.
    let at_once = rows / processes * ttl / GRID;
    let statements = if at_once < 1.0 {
        rows
    } else {
        processes * GRID / ttl * (at_once / MAX_BATCH).ceil()
    };
    Load { statements, rows }
}

fn waiters_table(stores: &[Costs]) -> String {
    let rows = stores.iter().flat_map(|store| {
        [100.0, 1_000.0, 10_000.0].map(|waiting| {
            let asks = waiting * store.asks;
            let load = Load {
                statements: asks,
                rows: asks,
            };
            vec![
                store.name.to_owned(),
                number(waiting),
                number(asks),
                share(store.share(load)),
            ]
        })
    });
    let head = [
        "waiting",
        "processes × keys",
        "statements a second",
        "of one server",
    ];
    table(&head, rows)
}
