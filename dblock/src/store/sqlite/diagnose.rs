//! Looks for what could keep locks in this file from working.

use sqlx::sqlite::SqliteRow;
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

use super::{SqliteStore, migrate};
use crate::store::diagnosis::{self, Asked, SAMPLES};
use crate::store::{Finding, Severity, StoreError, StoreErrorKind};

const CLOCK: &str = "SELECT CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000";

/// The names of the levels of `PRAGMA synchronous`. From FULL on a commit waits for the disk.
const LEVELS: [&str; 4] = ["OFF", "NORMAL", "FULL", "EXTRA"];
const FULL: i64 = 2;

/// Reports a file that this user may only read. Such a file may refuse even the first read, if a killed process
/// left a log that must be read back.
pub(super) async fn diagnose(store: &SqliteStore) -> Result<Vec<Finding>, StoreError> {
    match examine(store).await {
        Err(error) if error.kind() == StoreErrorKind::Refused => {
            let text = error.to_string();
            let refused = Finding::fault("grants", text, "no lock can be taken", String::new());
            Ok(vec![of_a_file(refused)])
        }
        examined => examined,
    }
}

async fn examine(store: &SqliteStore) -> Result<Vec<Finding>, StoreError> {
    let schema = diagnosis::schema(migrate::check_schema(store).await)?;
    let has_tables = schema.severity == Severity::Fine;
    let mut connection = store.connections.take().await?;
    let looked = look(store, &mut connection, has_tables).await;
    let mut findings = connection.finish(looked)?;
    findings.insert(1, schema);
    findings.push(Finding::fine(
        "wake_ups",
        "a file sends none",
        "waiters ask again after 10 to 100 ms",
    ));
    Ok(findings)
}

async fn look(
    store: &SqliteStore,
    on: &mut SqliteConnection,
    has_tables: bool,
) -> Result<Vec<Finding>, StoreError> {
    let version: String = value(store, on, "SELECT sqlite_version()").await?;
    let mode: String = value(store, on, "PRAGMA journal_mode").await?;
    let level: i64 = value(store, on, "PRAGMA synchronous").await?;
    let mut findings = vec![
        Finding::fine(
            "version",
            format!("SQLite {version}"),
            "it is built in, and tested",
        ),
        durability(level),
    ];
    // A file without our tables keeps its mode.
    if has_tables {
        findings.insert(1, journal(&mode));
    }
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let asked = Asked::now();
        samples.push(asked.answered(value(store, on, CLOCK).await?));
    }
    findings.extend(diagnosis::clock_and_round_trip(samples));
    if has_tables {
        let mut refused = Vec::new();
        for probe in diagnosis::probes(
            &store.table.quoted('"'),
            &store.table.quoted_version('"'),
            &store.table.quoted_record('"'),
        ) {
            if let Err(error) = rows(store, on, probe.statement.clone()).await {
                refused.push(probe.refused(error));
            }
        }
        findings.extend(diagnosis::grants(&refused).map(of_a_file));
    }
    Ok(findings)
}

/// SQLite has no rights of users: the file and its directory have.
fn of_a_file(mut finding: Finding) -> Finding {
    if finding.severity != Severity::Fine {
        finding.remedy = Some(
            "let this user write the file and its directory, and open it without `mode=ro` and `immutable`; migrate if a \
             table is missing"
                .into(),
        );
    }
    finding
}

fn journal(mode: &str) -> Finding {
    let found = format!("journal_mode = {mode}");
    if mode == "wal" {
        return Finding::fine("journal", found, "readers and the writer do not block each other");
    }
    Finding::note(
        "journal",
        found,
        "the file cannot be switched to WAL, as on a network file system, where locks of files are not reliable either",
        "keep the file on a disk of this host",
    )
}

fn durability(level: i64) -> Finding {
    let name = usize::try_from(level).ok().and_then(|level| LEVELS.get(level));
    let found = format!("synchronous = {}", name.unwrap_or(&"unknown"));
    if level >= FULL {
        return diagnosis::durable(found);
    }
    diagnosis::not_durable(
        found,
        "let dblock open the file itself: it sets synchronous = FULL",
    )
}

async fn value<T>(store: &SqliteStore, on: &mut SqliteConnection, text: &str) -> Result<T, StoreError>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    let rows = rows(store, on, text.to_owned()).await?;
    let row = rows.first().ok_or(sqlx::Error::RowNotFound);
    row.and_then(|row| row.try_get(0))
        .map_err(|error| store.failed(error))
}

async fn rows(
    store: &SqliteStore,
    on: &mut SqliteConnection,
    text: String,
) -> Result<Vec<SqliteRow>, StoreError> {
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(on).await;
    rows.map_err(|error| store.failed(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_has_its_consequence() {
        assert_eq!(journal("wal").severity, Severity::Fine);
        assert_eq!(journal("delete").severity, Severity::Note);
        let levels = [0, 1, 2, 3].map(|level| durability(level).severity);
        assert_eq!(
            levels,
            [Severity::Fault, Severity::Fault, Severity::Fine, Severity::Fine]
        );
    }
}
