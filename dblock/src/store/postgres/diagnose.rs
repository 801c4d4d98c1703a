//! Looks for what could keep locks in this database from working.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::{PostgresStore, listen, migrate};
use crate::store::StoreError;
use crate::store::diagnosis::{self, Asked, SAMPLES};
use crate::store::{Finding, Severity};

/// The settings that matter. Names and texts are the server's own.
const SETTINGS: &str = "SELECT name::text, setting::text FROM pg_catalog.pg_settings WHERE name IN ('fsync', \
    'synchronous_commit', 'full_page_writes', 'server_version_num', 'synchronous_standby_names', \
    'transaction_read_only', 'transaction_isolation') \
    UNION ALL SELECT 'standby', pg_catalog.pg_is_in_recovery()::text \
    UNION ALL SELECT 'replicas', pg_catalog.count(*)::text FROM pg_catalog.pg_stat_replication";

const CLOCK: &str = "SELECT (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) * 1000000)::bigint";

type Settings = HashMap<String, String>;

pub(super) async fn diagnose(store: &PostgresStore) -> Result<Vec<Finding>, StoreError> {
    let schema = diagnosis::schema(migrate::check_schema(store).await)?;
    let has_tables = schema.severity == Severity::Fine;
    let mut session = store.connections.take_new().await?;
    let is_ours = session.is_ours();
    let looked = look(store, &mut session, has_tables).await;
    let (settings, mut rest) = session.finish(looked)?;
    let mut findings = vec![
        version(&settings),
        read_only(&settings),
        schema,
        durability(&settings),
        full_page_writes(&settings),
        replication(&settings),
        isolation(&settings),
        pooler(is_ours),
    ];
    findings.append(&mut rest);
    findings.push(wake_ups(store).await);
    Ok(findings)
}

/// All that one connection tells.
async fn look(
    store: &PostgresStore,
    on: &mut PgConnection,
    has_tables: bool,
) -> Result<(Settings, Vec<Finding>), StoreError> {
    let rows = rows(store, on, SETTINGS.to_owned()).await?;
    let pair = |row: &PgRow| Ok((row.try_get(0)?, row.try_get(1)?));
    let settings: Result<Settings, sqlx::Error> = rows.iter().map(pair).collect();
    let settings = settings.map_err(|error| store.failed(error))?;
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let asked = Asked::now();
        let answer = self::rows(store, on, CLOCK.to_owned()).await?;
        let now = answer.first().map_or(Ok(0), |row| row.try_get(0));
        samples.push(asked.answered(now.map_err(|error| store.failed(error))?));
    }
    let mut findings = diagnosis::clock_and_round_trip(samples);
    if has_tables && !is_on(&settings, "transaction_read_only") {
        let mut refused = Vec::new();
        for probe in diagnosis::probes(
            &store.table.quoted('"'),
            &store.table.quoted_version('"'),
            &store.table.quoted_record('"'),
        ) {
            if let Err(error) = self::rows(store, on, probe.statement.clone()).await {
                refused.push(probe.refused(error));
            }
        }
        findings.extend(diagnosis::grants(&refused));
    }
    Ok((settings, findings))
}

async fn rows(store: &PostgresStore, on: &mut PgConnection, text: String) -> Result<Vec<PgRow>, StoreError> {
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(on).await;
    rows.map_err(|error| store.failed(error))
}

fn setting<'s>(settings: &'s Settings, name: &str) -> &'s str {
    settings.get(name).map_or("", String::as_str)
}

fn is_on(settings: &Settings, name: &str) -> bool {
    matches!(setting(settings, name), "on" | "true")
}

fn version(settings: &Settings) -> Finding {
    let number = setting(settings, "server_version_num").parse().unwrap_or(0);
    let found = (number / 10_000, number % 10_000);
    // The minor version does not matter.
    let tested = (found.0 == 15).then_some(found);
    diagnosis::version("PostgreSQL", found, (13, 0), tested)
}

fn read_only(settings: &Settings) -> Finding {
    if is_on(settings, "standby") {
        return Finding::fault(
            "read_only",
            "the server is a standby",
            "no lock can be taken here",
            "point dblock at the primary",
        );
    }
    if is_on(settings, "transaction_read_only") {
        return Finding::fault(
            "read_only",
            "this user's sessions are read-only",
            "no lock can be taken",
            "unset default_transaction_read_only for this user or database",
        );
    }
    Finding::fine(
        "read_only",
        "the server is a primary and takes writes",
        "locks can be taken",
    )
}

fn durability(settings: &Settings) -> Finding {
    let commit = setting(settings, "synchronous_commit");
    if !is_on(settings, "fsync") {
        return diagnosis::not_durable(
            "fsync = off",
            "set fsync = on, unless the data may be lost, as in tests",
        );
    }
    if commit == "off" {
        return diagnosis::not_durable(
            "synchronous_commit = off",
            "set synchronous_commit = on for the user of the locks: ALTER ROLE … SET synchronous_commit = on",
        );
    }
    diagnosis::durable(format!("fsync = on, synchronous_commit = {commit}"))
}

fn full_page_writes(settings: &Settings) -> Finding {
    let (check, found) = ("full_page_writes", setting(settings, "full_page_writes"));
    let found = format!("full_page_writes = {found}");
    if is_on(settings, check) {
        return Finding::fine(
            check,
            found,
            "a page that was half written in a crash is repaired",
        );
    }
    let meaning =
        "after a power cut the table may be damaged, unless the file system writes whole pages, as ZFS does";
    Finding::note(check, found, meaning, "set full_page_writes = on")
}

fn replication(settings: &Settings) -> Finding {
    let (check, replicas) = ("replication", setting(settings, "replicas"));
    let names = setting(settings, "synchronous_standby_names");
    let waits = !names.is_empty() && setting(settings, "synchronous_commit") != "local";
    if replicas == "0" {
        return Finding::fine(
            check,
            "no standby is connected, as far as this user can see",
            "nothing can be lost in a fail-over",
        );
    }
    if waits {
        let found = format!("commits wait for the standbys {names}");
        return Finding::fine(check, found, "a fail-over to one of them loses no lease");
    }
    Finding::note(
        check,
        format!("{replicas} standbys follow, and commits wait for none"),
        "a fail-over may lose the row of a lease that somebody holds; only the fence token protects then",
        "set synchronous_standby_names, or check fence tokens",
    )
}

fn isolation(settings: &Settings) -> Finding {
    let found = setting(settings, "transaction_isolation").to_owned();
    if found == "read committed" {
        let meaning = "statements of locks see the newest rows";
        return Finding::fine("isolation", found, meaning);
    }
    Finding::note(
        "isolation",
        found,
        "behind the pooler each statement of a lock asks for READ COMMITTED itself",
        "none is needed",
    )
}

fn pooler(is_ours: bool) -> Finding {
    if is_ours {
        let found = "none that shares sessions";
        return Finding::fine("pooler", found, "settings, prepared statements and LISTEN work");
    }
    Finding::note(
        "pooler",
        "a pooler lends sessions for a transaction at a time",
        "locks are safe; dblock prepares no statements here, and waiters poll instead of being woken",
        "give dblock a URL past the pooler, or a pool in session mode, if waits should be shorter",
    )
}

/// Tests wake-ups by a notification to itself.
async fn wake_ups(store: &PostgresStore) -> Finding {
    match listen::heard_after(store).await {
        Ok(took) => Finding::fine(
            "wake_ups",
            format!("a notification arrived after {}", diagnosis::shown(took)),
            "a release wakes the next waiter at once",
        ),
        Err(error) => Finding::note(
            "wake_ups",
            error.to_string(),
            "locks are safe, but waiters ask again now and then instead of being woken",
            "let one connection LISTEN: past the pooler, or with a pool in session mode",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let good = [
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("server_version_num", "150014"),
            ("synchronous_standby_names", ""),
            ("transaction_read_only", "off"),
            ("transaction_isolation", "read committed"),
            ("standby", "false"),
            ("replicas", "0"),
        ];
        let all = good.iter().chain(pairs);
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn severities(pairs: &[(&str, &str)]) -> [Severity; 6] {
        let settings = settings(pairs);
        let all = [
            version,
            read_only,
            durability,
            full_page_writes,
            replication,
            isolation,
        ];
        all.map(|check| check(&settings).severity)
    }

    #[test]
    fn each_setting_has_its_consequence() {
        use Severity::{Fault, Fine, Note};

        let fine = [Fine; 6];
        let but = |place: usize, severity| {
            let mut all = fine;
            all[place] = severity;
            all
        };
        assert_eq!(severities(&[]), fine);
        assert_eq!(severities(&[("server_version_num", "120001")]), but(0, Fault));
        assert_eq!(severities(&[("server_version_num", "170001")]), but(0, Note));
        assert_eq!(severities(&[("standby", "true")]), but(1, Fault));
        assert_eq!(severities(&[("transaction_read_only", "on")]), but(1, Fault));
        assert_eq!(severities(&[("fsync", "off")]), but(2, Fault));
        assert_eq!(severities(&[("synchronous_commit", "off")]), but(2, Fault));
        assert_eq!(severities(&[("synchronous_commit", "remote_apply")]), fine);
        assert_eq!(severities(&[("full_page_writes", "off")]), but(3, Note));
        assert_eq!(severities(&[("replicas", "2")]), but(4, Note));
        let waited_for = [("replicas", "2"), ("synchronous_standby_names", "ANY 1 (a, b)")];
        assert_eq!(severities(&waited_for), fine);
        assert_eq!(
            severities(&[("transaction_isolation", "serializable")]),
            but(5, Note)
        );
    }
}
