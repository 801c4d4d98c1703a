//! Which files can keep locks.

use std::path::Path;

use dblock::open::sqlite;
use dblock::store::StoreErrorKind;
use dblock::{LockError, Severity};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::{File, TABLE, TTL, acquire, assert_error, one, options};

#[tokio::test]
async fn a_file_that_cannot_keep_locks_says_why() {
    let file = File::migrated().await;
    let read_only = sqlite::open(file.options().create_if_missing(false).read_only(true), TABLE).unwrap();
    read_only.check_schema().await.unwrap();
    assert_error(
        one(&*read_only, &acquire("k", TTL)).await,
        StoreErrorKind::Refused,
        "may not write",
    );

    let text = file.0.path().join("notes.txt");
    std::fs::write(&text, "not a database ".repeat(1000)).unwrap();
    let text = sqlite::open(options(&text), TABLE).unwrap();
    assert_error(
        text.check_schema().await,
        StoreErrorKind::Unsupported,
        "not a SQLite database",
    );
    assert_error(
        text.migrate().await,
        StoreErrorKind::Unsupported,
        "not a SQLite database",
    );

    for (path, obstacle) in [
        ("missing.db", "it is not there and was not made"),
        ("no directory/locks.db", "its directory is not there"),
        (".", "may this process read and write it"),
    ] {
        let path = file.0.path().join(path);
        let missing = sqlite::open(options(&path), TABLE).unwrap();
        let message = format!("the SQLite file {} cannot be opened: {obstacle}", path.display());
        assert_error(
            missing.check_schema().await,
            StoreErrorKind::Unreachable,
            &message,
        );
    }
}

#[tokio::test]
async fn a_look_finds_what_keeps_locks_from_working() {
    let file = File::migrated().await;
    let faults = async |options: SqliteConnectOptions| {
        let store = sqlite::open(options.create_if_missing(false), TABLE).unwrap();
        let findings = store.diagnose().await.unwrap();
        assert!(findings.len() > 5, "{findings:?}");
        let faults = findings
            .into_iter()
            .filter(|finding| finding.severity == Severity::Fault);
        faults.map(|finding| finding.check).collect::<Vec<_>>()
    };
    assert_eq!(faults(file.options()).await, [""; 0]);
    assert_eq!(faults(file.options().read_only(true)).await, ["grants"]);
}

/// A mistyped URL may lead to the database of another program.
#[tokio::test]
async fn a_look_changes_no_file_without_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("theirs.db");
    let mut theirs = options(&path).create_if_missing(true).connect().await.unwrap();
    sqlx::query("CREATE TABLE theirs (id INTEGER)")
        .execute(&mut theirs)
        .await
        .unwrap();
    theirs.close().await.unwrap();
    let before = std::fs::read(&path).unwrap();
    let wal = |bytes: &[u8]| bytes[18..20] == [2, 2];
    assert!(!wal(&before));

    let store = sqlite::open(options(&path), TABLE).unwrap();
    assert_error(store.check_schema().await, StoreErrorKind::Schema, "is not there");
    store.diagnose().await.unwrap();
    store.close().await;
    assert_eq!(std::fs::read(&path).unwrap(), before);

    // Then the file is ours too.
    let store = sqlite::open(options(&path).journal_mode(SqliteJournalMode::Delete), TABLE).unwrap();
    store.migrate().await.unwrap();
    let row = one(&*store, &acquire("k", TTL)).await;
    assert!(row.is_ok(), "{row:?}");
    store.close().await;
    assert!(wal(&std::fs::read(&path).unwrap()));
}

#[tokio::test]
async fn rows_that_one_connection_sees_are_refused() {
    let in_memory = [
        "sqlite::memory:",
        "sqlite://:memory:",
        "sqlite://x?mode=memory",
        "sqlite://x?mode=memory&cache=shared",
    ];
    let mut all: Vec<SqliteConnectOptions> = in_memory.iter().map(|url| url.parse().unwrap()).collect();
    all.push(SqliteConnectOptions::new());
    all.push(options(Path::new("x.db")).in_memory(true));
    all.push(options(Path::new("file:x?mode=memory")));
    all.push(options(Path::new("")));
    for options in all {
        let answer = sqlite::open(options.clone(), TABLE);
        assert!(
            matches!(&answer, Err(LockError::Invalid { message, .. }) if message.contains("memory store")),
            "{options:?}: {answer:?}"
        );
    }
    let temporary = sqlite::open(options(Path::new("x.db")), "temp.locks");
    assert!(
        matches!(temporary, Err(LockError::Invalid { .. })),
        "{temporary:?}"
    );
    for file in ["memory.db", "at 12:30.db", "[a].db"] {
        assert!(sqlite::open(options(Path::new(file)), TABLE).is_ok(), "{file}");
    }
}

#[tokio::test]
async fn a_closed_store_says_so() {
    let file = File::migrated().await;
    let store = file.store();
    store.close().await;
    assert_error(
        one(&*store, &acquire("k", TTL)).await,
        StoreErrorKind::Other,
        "closed",
    );
}
