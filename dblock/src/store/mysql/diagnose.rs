//! Looks for what could keep locks in this database from working.

use std::collections::HashMap;

use sqlx::mysql::{MySqlConnection, MySqlRow};
use sqlx::{AssertSqlSafe, Row as _};

use super::session::IS_NODE;
use super::{MySqlStore, migrate, sql};
use crate::store::StoreError;
use crate::store::diagnosis::{self, Asked, SAMPLES};
use crate::store::{Finding, Severity};

/// The server's variables that matter. The answer leaves out those that the server does not have.
const VARIABLES: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('read_only', 'super_read_only', \
    'innodb_read_only', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'innodb_doublewrite', \
    'transaction_isolation', 'tx_isolation', 'version')";

type Variables = HashMap<String, String>;

pub(super) async fn diagnose(store: &MySqlStore) -> Result<Vec<Finding>, StoreError> {
    let schema = diagnosis::schema(migrate::check_schema(store).await)?;
    let has_tables = schema.severity == Severity::Fine;
    let mut connection = store.connections.take_new().await?;
    let looked = look(store, &mut connection, has_tables).await;
    let (variables, mut rest) = connection.finish(looked)?;
    let mut findings = vec![
        version(&variables),
        read_only(&variables),
        schema,
        durability(&variables),
        doublewrite(&variables),
        replication(&variables),
        isolation(&variables),
    ];
    findings.append(&mut rest);
    findings.push(Finding::fine(
        "wake_ups",
        "this database sends none",
        "waiters ask again after 10 to 100 ms",
    ));
    Ok(findings)
}

/// All that one connection tells.
async fn look(
    store: &MySqlStore,
    on: &mut MySqlConnection,
    has_tables: bool,
) -> Result<(Variables, Vec<Finding>), StoreError> {
    let rows = rows(store, on, format!("{VARIABLES};{IS_NODE}")).await?;
    let pair = |row: &MySqlRow| Ok((row.try_get::<String, _>(0)?.to_ascii_lowercase(), row.try_get(1)?));
    let variables: Result<Variables, sqlx::Error> = rows.iter().map(pair).collect();
    let variables = variables.map_err(|error| store.failed(error))?;
    let mut samples = Vec::new();
    for _ in 0..SAMPLES {
        let asked = Asked::now();
        let answer = self::rows(store, on, format!("SELECT {}", sql::CLOCK)).await?;
        let now = answer.first().map_or(Ok(0), |row| row.try_get(0));
        samples.push(asked.answered(now.map_err(|error| store.failed(error))?));
    }
    let mut findings = diagnosis::clock_and_round_trip(samples);
    if has_tables && read_only(&variables).severity == Severity::Fine {
        let mut refused = Vec::new();
        for probe in diagnosis::probes(
            &store.table_sql,
            &store.table.quoted_version('`'),
            &store.table.quoted_record('`'),
        ) {
            if let Err(error) = self::rows(store, on, probe.statement.clone()).await {
                refused.push(probe.refused(error));
            }
        }
        findings.extend(diagnosis::grants(&refused));
    }
    Ok((variables, findings))
}

async fn rows(
    store: &MySqlStore,
    on: &mut MySqlConnection,
    text: String,
) -> Result<Vec<MySqlRow>, StoreError> {
    let rows = sqlx::raw_sql(AssertSqlSafe(text)).fetch_all(on).await;
    rows.map_err(|error| store.failed(error))
}

fn variable<'s>(variables: &'s Variables, name: &str) -> &'s str {
    variables.get(name).map_or("", String::as_str)
}

fn is_on(variables: &Variables, name: &str) -> bool {
    matches!(variable(variables, name), "ON" | "1")
}

fn version(variables: &Variables) -> Finding {
    let text = variable(variables, "version");
    let mut parts = text.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let found = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if text.contains("MariaDB") {
        diagnosis::version("MariaDB", found, (10, 6), Some((10, 11)))
    } else {
        diagnosis::version("MySQL", found, (8, 0), None)
    }
}

fn read_only(variables: &Variables) -> Finding {
    let names = ["read_only", "super_read_only", "innodb_read_only"];
    let on: Vec<_> = names.into_iter().filter(|name| is_on(variables, name)).collect();
    if on.is_empty() {
        return Finding::fine("read_only", "the server takes writes", "locks can be taken");
    }
    Finding::fault(
        "read_only",
        format!("{} = ON", on.join(", ")),
        "the server is a replica, or about to become one: no lock can be taken, or only one that others do not see",
        "point dblock at the primary",
    )
}

fn durability(variables: &Variables) -> Finding {
    let name = "innodb_flush_log_at_trx_commit";
    let value = variable(variables, name);
    let found = format!("{name} = {value}");
    if value == "1" || value == "3" {
        return diagnosis::durable(found);
    }
    diagnosis::not_durable(found, format!("set {name} = 1"))
}

fn doublewrite(variables: &Variables) -> Finding {
    let (check, value) = ("full_page_writes", variable(variables, "innodb_doublewrite"));
    let found = format!("innodb_doublewrite = {value}");
    if matches!(value, "OFF" | "0") {
        let meaning = "after a power cut the table may be damaged, unless the file system writes whole pages, as ZFS does";
        return Finding::note(check, found, meaning, "set innodb_doublewrite = ON");
    }
    Finding::fine(
        check,
        found,
        "a page that was half written in a crash is repaired",
    )
}

fn replication(variables: &Variables) -> Finding {
    let check = "replication";
    if is_on(variables, "wsrep_on") {
        let meaning = "all nodes know a lease, and take writes; verify_in protects only if all processes, and the transactions, use one node";
        let remedy = "name all nodes in each process's URL, so that all use one, or check fence tokens, or end locks with transactions";
        return Finding::note(check, "the server is a node of Galera", meaning, remedy);
    }
    if !is_on(variables, "log_bin") {
        let found = "the server writes no binary log, so it has no replicas";
        return Finding::fine(check, found, "nothing can be lost in a fail-over");
    }
    let found = format!(
        "log_bin = ON, sync_binlog = {}",
        variable(variables, "sync_binlog")
    );
    Finding::note(
        check,
        found,
        "a fail-over to a replica may lose the row of a lease that somebody holds, unless replication waits for it; only the \
         fence token protects then",
        "set sync_binlog = 1 and semi-synchronous replication with AFTER_SYNC, or check fence tokens",
    )
}

fn isolation(variables: &Variables) -> Finding {
    let names = ["transaction_isolation", "tx_isolation"];
    let found = names
        .iter()
        .map(|name| variable(variables, name))
        .find(|value| !value.is_empty());
    Finding::fine(
        "isolation",
        format!("the server's default is {}", found.unwrap_or("unknown")),
        "locks use READ COMMITTED in their own sessions, whatever the default",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn severities(pairs: &[(&str, &str)]) -> [Severity; 5] {
        let good = [
            ("version", "10.11.14-MariaDB-0+deb12u2"),
            ("read_only", "OFF"),
            ("innodb_flush_log_at_trx_commit", "1"),
            ("innodb_doublewrite", "ON"),
            ("log_bin", "OFF"),
        ];
        let all = good.iter().chain(pairs);
        let variables = all
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        [version, read_only, durability, doublewrite, replication].map(|check| check(&variables).severity)
    }

    #[test]
    fn each_variable_has_its_consequence() {
        use Severity::{Fault, Fine, Note};

        let fine = [Fine; 5];
        let but = |place: usize, severity| {
            let mut all = fine;
            all[place] = severity;
            all
        };
        assert_eq!(severities(&[]), fine);
        assert_eq!(severities(&[("version", "8.4.3")]), but(0, Note));
        assert_eq!(severities(&[("version", "5.7.44-log")]), but(0, Fault));
        assert_eq!(severities(&[("version", "10.5.1-MariaDB")]), but(0, Fault));
        assert_eq!(severities(&[("super_read_only", "ON")]), but(1, Fault));
        for lax in ["0", "2"] {
            assert_eq!(
                severities(&[("innodb_flush_log_at_trx_commit", lax)]),
                but(2, Fault)
            );
        }
        assert_eq!(severities(&[("innodb_doublewrite", "OFF")]), but(3, Note));
        assert_eq!(severities(&[("log_bin", "ON")]), but(4, Note));
        assert_eq!(severities(&[("wsrep_on", "ON")]), but(4, Note));
    }
}
