//! The doctor's findings, on the servers of the tests and in situations made for it.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

use dblock_servers::pgbouncer::Setup;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind, on_every_store, own_server};
use serde_json::Value;
use tokio::process::Command;

use crate::program::{Said, bare, dblock, said};

on_every_store!(databases: every_check_has_its_meaning, without_tables_the_fault_is_told);
on_every_store!(servers: missing_rights_are_told);
on_every_store!(sqlite: a_file_that_cannot_be_written_is_a_fault, a_file_of_somebody_else_is_examined);
on_every_store!(postgres: behind_a_pooler_no_wake_up_is_heard, what_only_a_role_has_is_seen);

/// The severity and the text of each check.
fn findings(told: &Said) -> Vec<(String, String, String)> {
    let json = told.json();
    let findings = json["findings"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for finding in findings {
        assert_eq!(
            finding["remedy"].is_null(),
            finding["severity"] == "fine",
            "{finding}"
        );
        assert!(
            !text(&finding["found"]).is_empty() && !text(&finding["meaning"]).is_empty(),
            "{finding}"
        );
    }
    let faults = findings
        .iter()
        .filter(|finding| finding["severity"] == "fault")
        .count();
    assert_eq!(
        (json["faults"].as_u64(), told.code),
        (Some(faults as u64), Some(i32::from(faults > 0)))
    );
    findings
        .iter()
        .map(|finding| {
            (
                text(&finding["check"]),
                text(&finding["severity"]),
                text(&finding["found"]),
            )
        })
        .collect()
}

fn severity(findings: &[(String, String, String)], check: &str) -> String {
    let found = findings.iter().find(|(name, ..)| name == check);
    found.map_or_else(
        || panic!("no {check} in {findings:?}"),
        |(_, severity, _)| severity.clone(),
    )
}

async fn examined(backend: &Backend) -> Vec<(String, String, String)> {
    findings(&said(dblock(backend).args(["doctor", "--json"])).await)
}

async fn every_check_has_its_meaning(backend: Backend) {
    let found = examined(&backend).await;
    let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
    for check in [
        "version",
        "schema",
        "durability",
        "clock",
        "round_trip",
        "grants",
        "record_grants",
        "wake_ups",
        "lock",
    ] {
        assert!(names.contains(&check), "{check} is not in {names:?}");
    }
    for check in ["schema", "grants", "record_grants", "wake_ups", "clock"] {
        assert_eq!(severity(&found, check), "fine", "{found:?}");
    }
    // The servers of the tests do not wait for the disk.
    let durable = if backend.kind() == Kind::Sqlite {
        "fine"
    } else {
        "fault"
    };
    if std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").is_ok() || backend.kind() == Kind::Sqlite {
        assert_eq!(severity(&found, "durability"), durable, "{found:?}");
    }
    let told = said(dblock(&backend).arg("doctor")).await;
    assert!(
        told.out.contains("durability") && !told.out.contains('\u{1b}'),
        "{told:?}"
    );
    assert!(backend.the_row("dblock-doctor").await.is_free());
}

async fn without_tables_the_fault_is_told(backend: Backend) {
    let mut other = backend.clone();
    other.table = String::from("nothing_here");
    let found = examined(&other).await;
    assert_eq!(severity(&found, "schema"), "fault");
    assert!(!found.iter().any(|(check, ..)| check == "lock"), "{found:?}");
    let told = said(dblock(&other).arg("doctor")).await;
    assert!(
        told.out.contains("dblock --table nothing_here migrate") && !told.out.contains("LockManager"),
        "{told:?}"
    );
}

async fn missing_rights_are_told(backend: Backend) {
    let user = format!("u{}", &backend.table[backend.table.len() - 12..]);
    let (at, all) = match backend.kind() {
        Kind::Postgres => ("", "{table}, {table}_version, {table}_record"),
        _ => ("@'%'", ""),
    };
    let create = match backend.kind() {
        Kind::Postgres => format!("CREATE ROLE {user} LOGIN PASSWORD 'sekret'"),
        _ => format!("CREATE USER {user}{at} IDENTIFIED BY 'sekret'"),
    };
    backend.execute(&create).await;
    let grant = async |rights: &str, table: &str| {
        backend
            .execute(&format!("GRANT {rights} ON {table} TO {user}{at}"))
            .await;
    };
    grant("SELECT", "{table}").await;
    grant("SELECT", "{table}_version").await;
    let url = backend.url().unwrap();
    let place = url.rsplit_once('@').unwrap().1;
    let scheme = url.split_once(':').unwrap().0;
    let examine = async || {
        let mut command = bare();
        command.args([
            "--url",
            &format!("{scheme}://{user}:sekret@{place}"),
            "--table",
            &backend.table,
        ]);
        let told = said(command.args(["doctor", "--json"])).await;
        assert!(
            !told.out.contains("sekret") && !told.err.contains("sekret"),
            "{told:?}"
        );
        findings(&told)
    };
    let found = examine().await;
    assert_eq!(severity(&found, "grants"), "fault", "{found:?}");
    let text = &found.iter().find(|(check, ..)| check == "grants").unwrap().2;
    assert!(text.starts_with("INSERT, UPDATE, DELETE fails"), "{text}");
    grant("INSERT, UPDATE", "{table}").await;
    assert_eq!(severity(&examine().await, "grants"), "note");
    grant("DELETE", "{table}").await;
    let found = examine().await;
    assert_eq!(severity(&found, "grants"), "fine", "{found:?}");
    assert_eq!(severity(&found, "record_grants"), "note", "{found:?}");
    grant("SELECT, INSERT, UPDATE, DELETE", "{table}_record").await;
    assert_eq!(severity(&examine().await, "record_grants"), "fine");
    if backend.kind() == Kind::Postgres {
        backend.execute(&format!("REVOKE ALL ON {all} FROM {user}")).await;
    }
    backend.execute(&format!("DROP USER {user}{at}")).await;
}

async fn a_file_that_cannot_be_written_is_a_fault(backend: Backend) {
    let mut command = bare();
    command.env("DATABASE_URL", format!("{}?mode=ro", backend.url().unwrap()));
    let told = said(command.args(["--table", &backend.table, "doctor", "--json"])).await;
    assert_eq!(severity(&findings(&told), "grants"), "fault");
}

/// This user may read the file and no more.
async fn a_file_of_somebody_else_is_examined(backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("locks.db");
    let url = format!("sqlite://{}", file.display());
    let migrated = said(bare().args(["migrate", "--url", &url])).await;
    assert_eq!(migrated.code, Some(0), "{migrated:?}");
    for (path, mode) in [(&*file, 0o444), (folder.path(), 0o555)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    // Root may write whatever the mode says.
    let root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    let user = if root {
        &["--reuid=65534", "--clear-groups"][..]
    } else {
        &[]
    };
    let mut doctor = Command::new("setpriv");
    doctor.args(user).arg(env!("CARGO_BIN_EXE_dblock"));
    let told = said(
        doctor
            .args(["doctor", "--json", "--url", &url])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .await;
    assert_eq!(severity(&findings(&told), "grants"), "fault");
    assert!(
        told.out.contains("write the file") && !told.out.contains("grant SELECT"),
        "{told:?}"
    );
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(backend);
}

async fn behind_a_pooler_no_wake_up_is_heard(backend: Backend) {
    let Some(pooler) = own_server::pgbouncer(Setup::Refuses).await else {
        return;
    };
    let mut command = bare();
    command.env("DATABASE_URL", pooler.url());
    let found = findings(&said(command.args(["--table", &backend.table, "doctor", "--json"])).await);
    for check in ["pooler", "wake_ups"] {
        assert_eq!(severity(&found, check), "note", "{found:?}");
    }
    for check in ["schema", "grants", "lock"] {
        assert_eq!(severity(&found, check), "fine", "{found:?}");
    }
}

/// Settings of the role are those that its locks get.
async fn what_only_a_role_has_is_seen(backend: Backend) {
    let Place::Postgres(_, url) = backend.place() else {
        return;
    };
    let asynchronous = format!("{url}?options=-c%20synchronous_commit%3Doff");
    let read_only = format!("{url}?options=-c%20default_transaction_read_only%3Don");
    for (url, check) in [(asynchronous, "durability"), (read_only, "read_only")] {
        let mut command = bare();
        command.env("DATABASE_URL", url);
        let told = said(command.args(["--table", &backend.table, "doctor", "--json"])).await;
        assert_eq!(severity(&findings(&told), check), "fault", "{told:?}");
    }
}
