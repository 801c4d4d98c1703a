//! The cost of statements for a server, from the measured results.

use anyhow::Context as _;
use serde_json::Value;

use super::server::Load;

const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks/results.json");

/// Connections with which the floor was measured: so many statements share a commit.
const FLOOR_CONNECTIONS: f64 = 16.0;

/// One kind of server: times in µs.
pub(super) struct Costs {
    pub(super) name: &'static str,
    /// A commit's flush of the log. Statements that wait for it at once share it.
    pub(super) flush: f64,
    /// A statement, however many rows it writes.
    pub(super) statement: f64,
    /// A row that it writes, with its share of the waiting for commits.
    pub(super) row: f64,
    /// Statements a second of a process that waits for a key.
    pub(super) asks: f64,
    /// Connections of a process with all kinds of load.
    pub(super) sessions: f64,
}

impl Costs {
    pub(super) fn measured() -> anyhow::Result<[Self; 2]> {
        let results = std::fs::read_to_string(RESULTS).context("docs/benchmarks/results.json")?;
        let results: Value = serde_json::from_str(&results)?;
        Ok([
            Self::of(&results, "PostgreSQL", "postgres", "")?,
            Self::of(&results, "MariaDB", "mysql", "_mysql")?,
        ])
    }

    /// One task alone has a commit for each statement; the floor's statements share commits; 256 tasks fill
    /// large batches.
    fn of(results: &Value, name: &'static str, store: &str, suffix: &str) -> anyhow::Result<Self> {
        let figure = |scenario: &str, subject: &str, figure: &str| {
            results["scenarios"][scenario][subject][figure]
                .as_f64()
                .with_context(|| format!("no figure {figure} of {subject} in {scenario}"))
        };
        let (subject, floor) = (format!("dblock-{store}"), format!("floor-{store}"));
        let keys256 = format!("keys256{suffix}");
        let alone = 1e6 / figure(&format!("alone{suffix}"), &subject, "statements")?;
        let shared = 1e6 / figure(&keys256, &floor, "statements")?;
        let flush = (alone - shared) / (1.0 - 1.0 / FLOOR_CONNECTIONS);
        let statement = alone - flush;
        let rows = 2.0 * figure(&keys256, &subject, "per_s")?;
        let row = (1e6 - figure(&keys256, &subject, "statements")? * statement) / rows;
        Ok(Self {
            name,
            flush,
            statement,
            row,
            asks: figure("waiters", &subject, "statements")?,
            sessions: figure("waiters", &subject, "connections")?.max(figure(
                &keys256,
                &subject,
                "connections",
            )?),
        })
    }

    /// The part of its time that a server works for a load. The more statements come, the more of them share
    /// a commit.
    pub(super) fn share(&self, load: Load) -> f64 {
        let together = 1.0 + load.statements * self.flush / 1e6;
        let statement = self.statement + self.flush / together;
        (load.statements * statement + load.rows * self.row) / 1e6
    }
}
