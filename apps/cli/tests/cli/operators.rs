//! Commands that change rows, and what they ask before.

use dblock_tests::{Backend, on_every_store};
use serde_json::json;

use crate::program::{Said, bare, dblock, said};

on_every_store!(databases:
    revoke_and_force_release_say_whether_it_was_held,
    what_destroys_needs_a_yes,
    a_key_with_its_namespace_is_told_apart,
    migrate_creates_the_tables,
    a_table_of_somebody_else_is_left_alone,
);

#[tokio::test]
async fn a_command_leaves_no_files_beside_that_of_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    for (command, code) in [
        (&["migrate"][..], 0),
        (&["doctor"], 0),
        (&["ls"], 0),
        (&["show", "a"], 1),
        (&["--table", "other", "ls"], 78),
    ] {
        let told = said(bare().args(["--url", &url]).args(command)).await;
        assert_eq!(told.code, Some(code), "{told:?}");
        let names = std::fs::read_dir(folder.path()).unwrap();
        let names: Vec<_> = names.map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["locks.db"], "{command:?}");
    }
}

async fn told(backend: &Backend, arguments: &[&str]) -> Said {
    said(dblock(backend).args(arguments)).await
}

async fn revoke_and_force_release_say_whether_it_was_held(backend: Backend) {
    backend.die_inside("a", std::time::Duration::from_mins(10)).await;
    let revoked = told(&backend, &["revoke", "a", "--json"]).await;
    assert_eq!(
        (revoked.code, revoked.json()),
        (Some(0), json!({"key": "a", "was_held": true}))
    );
    let row = told(&backend, &["show", "a", "--json"]).await.json();
    assert_eq!((&row["revoked"], &row["state"]), (&true.into(), &"held".into()));
    let freed = told(&backend, &["force-release", "a", "--yes", "--json"]).await;
    assert_eq!(
        (freed.code, freed.json()),
        (Some(0), json!({"key": "a", "was_held": true}))
    );
    assert!(backend.the_row("a").await.is_free());
    for arguments in [
        &["revoke", "a"][..],
        &["force-release", "a"],
        &["force-release", "b", "-y"],
    ] {
        let told = told(&backend, arguments).await;
        assert_eq!((told.code, &*told.err), (Some(1), ""), "{arguments:?}: {told:?}");
        assert!(told.out.contains("is not held"), "{told:?}");
    }
}

async fn a_key_with_its_namespace_is_told_apart(backend: Backend) {
    backend
        .die_inside("billing:x", std::time::Duration::from_mins(10))
        .await;
    let billing = ["--namespace", "billing"];
    for command in [
        &["show"][..],
        &["force-release"],
        &["revoke"],
        &["records", "show"],
        &["records", "forget"],
        &["records", "resolve", "--run-again"],
    ] {
        let twice = told(&backend, &[&billing, command, &["billing:x"]].concat()).await;
        let text = twice.out + &twice.err;
        assert_eq!(twice.code, Some(1), "{command:?}: {text}");
        assert!(
            text.contains("\"billing:billing:x\"") && text.contains("write \"x\""),
            "{command:?}: {text}"
        );
    }
    let revoked = told(&backend, &[&billing[..], &["revoke", "x"]].concat()).await;
    assert_eq!(revoked.code, Some(0), "{revoked:?}");
    assert!(revoked.out.contains("\"billing:x\" is revoked"), "{revoked:?}");
}

async fn what_destroys_needs_a_yes(backend: Backend) {
    backend.die_inside("a", std::time::Duration::from_mins(10)).await;
    for arguments in [&["force-release", "a"][..], &["purge"]] {
        let told = told(&backend, arguments).await;
        assert_eq!((told.code, &*told.out), (Some(64), ""), "{told:?}");
        assert!(told.err.contains("--yes"), "{told:?}");
    }
    assert!(!backend.the_row("a").await.is_free());
    let purged = told(&backend, &["purge", "--yes", "--json", "--idle", "1d"]).await;
    assert_eq!((purged.code, purged.json()), (Some(0), json!({"deleted": 0})));
    let refused = told(&backend, &["purge", "--yes", "--idle", "1h"]).await;
    assert_eq!(refused.code, Some(64), "{refused:?}");
}

async fn migrate_creates_the_tables(backend: Backend) {
    let mut other = backend.clone();
    other.table = format!("{}_new", backend.table);
    for _ in 0..2 {
        let told = told(&other, &["migrate", "--json"]).await;
        assert_eq!(
            (told.code, told.json()),
            (Some(0), json!({"table": other.table, "migrated": true}))
        );
    }
    let run = told(&other, &["run", "-k", "a", "true"]).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    other.clean_up().await;
}

async fn a_table_of_somebody_else_is_left_alone(backend: Backend) {
    let mut other = backend.clone();
    other.table = format!("{}_new", backend.table);
    // The second time, beside a version table that dblock could have made.
    for (suffix, columns) in [
        ("", "lock_key INTEGER"),
        ("_version", "id INTEGER, version INTEGER, min_client INTEGER"),
    ] {
        other
            .execute(&format!("CREATE TABLE {}{suffix} ({columns})", other.table))
            .await;
        for (arguments, code) in [
            (&["migrate"][..], 78),
            (&["ls"], 78),
            (&["run", "-k", "a", "true"], 78),
            (&["revoke", "a"], 78),
            (&["doctor"], 1),
        ] {
            let told = told(&other, arguments).await;
            assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
            let text = told.out + &told.err;
            assert!(
                text.contains("is not dblock's")
                    && text.contains("another name by --table")
                    && !text.contains("grants"),
                "{arguments:?}: {text}"
            );
        }
    }
    other
        .execute(&format!("DROP TABLE {}_version", other.table))
        .await;
    other.execute(&format!("DROP TABLE {}", other.table)).await;
}

#[tokio::test]
async fn completions_and_pages_name_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let told = said(bare().args(["completions", shell])).await;
        assert_eq!(told.code, Some(0), "{told:?}");
        assert!(
            told.out.contains("force-release") && !told.out.contains("watchdog"),
            "{shell}"
        );
    }
    let page = said(bare().arg("man")).await;
    assert!(
        page.out.contains("dblock\\-run") && !page.out.contains("watchdog"),
        "{page:?}"
    );
    let folder = tempfile::tempdir().unwrap();
    let written = said(bare().arg("man").arg(folder.path())).await;
    assert_eq!(written.code, Some(0), "{written:?}");
    assert!(folder.path().join("dblock-run.1").exists());
}
