//! The answers of the commands: text, JSON, errors.

use std::collections::BTreeMap;

use dblock::LockOptions;
use dblock_tests::deadlock::deadlock;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, Kind, on_every_store};
use serde_json::Value;

use crate::program::{bare, dblock, said};

on_every_store!(databases: nothing_that_is_shown_acts_on_a_terminal, ls_and_show_tell_the_rows, ls_marks_a_deadlock, without_tables_the_remedy_is_told, a_reader_that_leaves_is_no_error);

/// Fields of the JSON are a promise.
const ROW: [&str; 15] = [
    "acquired_at",
    "expires_at",
    "fence_token",
    "held_seconds",
    "holder",
    "holds",
    "key",
    "next",
    "owner",
    "remaining_seconds",
    "revoked",
    "shared",
    "state",
    "transaction",
    "wanted",
];

on_every_store!(servers: a_key_that_a_transaction_keeps_is_held);

/// Until the transaction ends. Nobody can free it, and an operator is told which session it is.
async fn a_key_that_a_transaction_keeps_is_held(backend: Backend) {
    let is_postgres = backend.kind() == Kind::Postgres;
    let locks = backend.manager().await;
    let guard = locks.lock("order:7").acquire().await.unwrap();
    guard.release().await.unwrap();
    let show = async || {
        said(dblock(&backend).args(["show", "order:7", "--json"]))
            .await
            .json()
    };
    let mut tx = Transaction::begin(&backend).await;
    let lock = format!(
        "SELECT 1 FROM {} WHERE lock_key = 'order:7' FOR UPDATE",
        backend.table
    );
    tx.execute(lock).await;
    let row = show().await;
    assert_eq!(
        (&row["state"], &row["remaining_seconds"]),
        (&"held".into(), &Value::Null)
    );
    let transaction = &row["transaction"];
    let names = ["application", "open_seconds", "prepared", "session", "since"];
    assert_eq!(fields(transaction), names);
    assert_eq!(transaction["session"].is_u64(), is_postgres, "{row}");
    assert_eq!(row["held_seconds"], transaction["open_seconds"]);
    if is_postgres {
        let told = said(dblock(&backend).args(["ls", "--json"])).await.json();
        let listed = &told["locks"][0];
        assert_eq!(
            (&listed["key"], &listed["state"]),
            (&"order:7".into(), &"held".into())
        );
        assert_eq!(listed["transaction"]["session"], transaction["session"]);
        let told = said(dblock(&backend).arg("ls")).await;
        assert!(told.out.contains("an open transaction (session "), "{told:?}");
    }
    let told = said(dblock(&backend).args(["show", "order:7"])).await;
    assert!(told.out.contains("kept by"), "{told:?}");
    for command in [
        &["revoke", "order:7"][..],
        &["force-release", "order:7"],
        &["force-release", "order:7", "--yes"],
    ] {
        let told = said(dblock(&backend).args(command)).await;
        assert_eq!(told.code, Some(75), "{command:?}: {told:?}");
        assert!(told.err.contains("an open transaction"), "{told:?}");
    }
    tx.commit().await;
    let row = show().await;
    assert_eq!(
        (&row["state"], &row["transaction"]),
        (&"free".into(), &Value::Null)
    );
}

fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

/// Two calls hold a key each and wait for that of the other.
async fn ls_marks_a_deadlock(backend: Backend) {
    let (one, two) = (backend.manager().await, backend.manager().await);
    let [first, second] = deadlock(one.clone(), two);
    let guard = one.lock("c").acquire().await.unwrap();
    let marks = async || {
        let listed = said(dblock(&backend).args(["ls", "--json"])).await.json();
        let rows = listed["locks"].as_array().unwrap().iter();
        rows.map(|row| {
            (
                row["key"].as_str().unwrap().to_owned(),
                row["deadlock"].as_bool().unwrap(),
            )
        })
        .collect::<BTreeMap<_, _>>()
    };
    while marks().await != BTreeMap::from([("a".into(), true), ("b".into(), true), ("c".into(), false)]) {}
    let told = said(dblock(&backend).arg("ls")).await;
    assert_eq!(told.out.matches("(deadlock)").count(), 2, "{told:?}");
    guard.release().await.unwrap();
    first.abort();
    second.await.unwrap().unwrap().unwrap();
}

async fn ls_and_show_tell_the_rows(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("order:42").acquire().await.unwrap();
    locks
        .lock("order:7")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    locks
        .lock("other")
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();

    let told = said(dblock(&backend).arg("ls")).await;
    assert!(
        told.out.contains("order:42") && !told.out.contains("order:7"),
        "{told:?}"
    );
    let later = locks.lock("invoice").acquire().await.unwrap();
    let held = said(dblock(&backend).args(["ls", "--json"])).await.json();
    let keys = held["locks"].as_array().unwrap().iter().map(|row| &row["key"]);
    assert_eq!(
        keys.collect::<Vec<_>>(),
        ["order:42", "invoice"],
        "the longest held first"
    );
    later.release().await.unwrap();
    let all = said(dblock(&backend).args(["ls", "--all", "--prefix", "order:", "--json"]))
        .await
        .json();
    assert_eq!(fields(&all), ["locks", "truncated"]);
    let rows = all["locks"].as_array().unwrap();
    let state = |row: &Value| (row["key"].clone(), row["state"].clone());
    assert_eq!(state(&rows[0]), ("order:42".into(), "held".into()));
    assert_eq!(state(&rows[1]), ("order:7".into(), "free".into()));
    assert_eq!((rows.len(), &all["truncated"]), (2, &false.into()));
    let of_a_list = fields(&rows[0]).into_iter().filter(|name| *name != "deadlock");
    assert!(of_a_list.eq(ROW));
    assert_eq!(rows[0]["fence_token"], guard.fence_token());
    assert!(rows[1]["held_seconds"].is_null());
    let cut = said(dblock(&backend).args(["ls", "-a", "--limit", "1", "--json"]))
        .await
        .json();
    assert_eq!(cut["truncated"], true);

    let one = said(dblock(&backend).args(["show", "order:42", "--json"]))
        .await
        .json();
    assert_eq!((fields(&one), &one["key"]), (ROW.to_vec(), &rows[0]["key"]));
    let told = said(dblock(&backend).args(["show", "order:42"])).await;
    assert!(told.out.contains(&guard.fence_token().to_string()), "{told:?}");
    let told = said(dblock(&backend).args(["show", "order"])).await;
    assert_eq!((told.code, &*told.out), (Some(1), ""), "{told:?}");
    for command in ["show", "revoke", "force-release"] {
        let told = said(dblock(&backend).args([command, "oder:42"])).await;
        assert_eq!(told.code, Some(1), "{told:?}");
        let text = told.out + &told.err;
        assert!(text.contains("did you mean \"order:42\"?"), "{command}: {text}");
    }
    guard.release().await.unwrap();
    let told = said(dblock(&backend).arg("ls")).await;
    assert_eq!((told.code, &*told.out, &*told.err), (Some(0), "", ""));
}

/// A holder chooses its name, and a key may come from a request.
async fn nothing_that_is_shown_acts_on_a_terminal(backend: Backend) {
    const TURNS: &str = "a\u{202e}b\u{9b}2J\u{200b}";
    let locks = backend.manager().await;
    let guard = locks
        .lock(TURNS)
        .options(&LockOptions::new().function(TURNS))
        .acquire()
        .await
        .unwrap();
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", TURNS],
        &["show", TURNS, "--json"],
        &["run", "-k", TURNS, "true"],
        &["run", "--json", "-k", TURNS, "true"],
    ] {
        let told = said(dblock(&backend).args(arguments)).await;
        let text = told.out.clone() + &told.err;
        assert!(text.contains("202e"), "{arguments:?}: {told:?}");
        assert!(
            !text.contains(['\u{202e}', '\u{9b}', '\u{200b}']),
            "{arguments:?}: {told:?}"
        );
        if arguments.contains(&"ls") && arguments.contains(&"--json") {
            assert_eq!(told.json()["locks"][0]["key"], TURNS);
        }
    }
    guard.release().await.unwrap();
}

/// The driver would ignore it, and send the password in clear text.
#[tokio::test]
async fn a_mistyped_demand_for_tls_is_refused() {
    for url in [
        "postgres://u:secret@db.invalid/x?sslmod=require",
        "mysql://u:secret@db.invalid/x?ssl_mode=required",
    ] {
        let told = said(bare().args(["ls", "--url", url])).await;
        assert_eq!(told.code, Some(64), "{told:?}");
        assert!(
            told.err.contains("sslmode") && !told.err.contains("secret"),
            "{told:?}"
        );
    }
}

async fn without_tables_the_remedy_is_told(backend: Backend) {
    for arguments in [&["ls"][..], &["show", "a"]] {
        let mut command = bare();
        command
            .env("DATABASE_URL", backend.url().unwrap())
            .args(["--table", "nothing_here"]);
        let told = said(command.args(arguments)).await;
        assert_eq!(told.code, Some(78), "{told:?}");
        // The remedies of the library are for programmers.
        assert!(
            told.err
                .contains("is not there; run `dblock --table nothing_here migrate`")
                && !told.err.contains("LockManager"),
            "{told:?}"
        );
    }
}

async fn a_reader_that_leaves_is_no_error(backend: Backend) {
    backend.die_inside("a", std::time::Duration::from_mins(10)).await;
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["show", "a"],
        &["--help"],
        &["help", "run"],
    ] {
        let mut child = dblock(&backend).args(arguments).spawn().unwrap();
        // Nobody reads.
        drop(child.stdout.take());
        let told = crate::program::ended(child).await;
        assert_eq!((told.code, &*told.err), (Some(0), ""), "{arguments:?}: {told:?}");
    }
}

/// An empty file is an empty database for SQLite.
#[tokio::test]
async fn a_look_changes_no_file_without_tables() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("theirs.db");
    let database = format!("sqlite://{}", file.display());
    for (arguments, code) in [
        (&["ls"][..], 78),
        (&["show", "a"], 78),
        (&["records", "list"], 78),
        (&["watch"], 78),
        (&["revoke", "a"], 78),
        (&["doctor"], 1),
    ] {
        std::fs::write(&file, "").unwrap();
        let told = said(bare().env("DATABASE_URL", &database).args(arguments)).await;
        assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0, "{arguments:?}");
    }
    std::fs::write(&file, "no database, but a text").unwrap();
    let told = said(bare().env("DATABASE_URL", &database).arg("ls")).await;
    assert_eq!(told.code, Some(78), "{told:?}");
    assert!(told.err.contains("is not a SQLite database"), "{told:?}");
}

#[tokio::test]
async fn a_mistake_in_the_arguments_is_told_with_a_suggestion() {
    for (arguments, code, hint) in [
        (&["lss"][..], 64, "'ls'"),
        (&["run", "--tll", "3s", "-k", "a", "true"], 64, "'--ttl'"),
        (
            &["run", "-k", "a", "--ttl", "30", "true"],
            64,
            "write \"30s\" for seconds",
        ),
        (
            &["run", "-k", "a", "--ttl", "10ms", "true"],
            64,
            "cannot be renewed",
        ),
        (&["run", "-k", "", "true"], 64, "empty"),
        (&["run", "-k", "a"], 64, "<COMMAND>"),
        (&["run", "-k", "a", "--timeout", "5s", "true"], 64, "'--wait'"),
        (&["serve", "--listen", "7998"], 64, "such as 127.0.0.1:7998"),
        (
            &["purge", "--idle", "1h"],
            64,
            "'1h' for '--idle <IDLE>': rows are kept",
        ),
        (&[], 64, "Usage:"),
        (&["--help"], 0, ""),
        (&["--version"], 0, ""),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("a.db").display());
        let told = said(bare().env("DATABASE_URL", url).args(arguments)).await;
        assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
        assert!(told.err.contains(hint), "{arguments:?}: {told:?}");
        let usage = told.err.lines().find(|line| line.starts_with("Usage:"));
        assert!(
            !usage.unwrap_or_default().contains("--url"),
            "the variable has it: {told:?}"
        );
    }
}

#[tokio::test]
async fn a_url_that_is_none_is_told_without_its_password() {
    for (url, code, hint) in [
        ("", 64, "DATABASE_URL"),
        ("memory:", 64, "sqlite://"),
        ("sqlite::memory:", 64, "sqlite://"),
        ("zookeeper://u:sekret@h", 64, "without the zookeeper store"),
        ("oracle://u:sekret@h/0", 64, "use postgres"),
        ("u:sekret@host", 64, "use postgres"),
        (
            "postgres://u:sekret@127.0.0.1:1/x",
            69,
            "at 127.0.0.1:1 cannot be reached",
        ),
        (
            "mysql://u:sekret@127.0.0.1:1/x",
            69,
            "at 127.0.0.1:1 cannot be reached",
        ),
        ("redis://u:sekret@127.0.0.1:1/0", 69, "cannot be reached"),
        ("postgres://u:sekret@127.0.0.1:abc/x", 64, "port"),
        ("sqlite:///no/such/folder/a.db", 69, "dblock migrate"),
    ] {
        for json in [false, true] {
            let mut command = bare();
            command.args(["--url", url, "ls"]);
            let told = said(command.args(json.then_some("--json"))).await;
            assert_eq!(told.code, Some(code), "{url}: {told:?}");
            assert!(told.err.contains(hint), "{url}: {told:?}");
            assert!(
                !told.err.contains("u:sekret") && !told.err.contains("LockManager") && told.out.is_empty(),
                "{url}: {told:?}"
            );
        }
    }
    let help = said(
        bare()
            .env("DATABASE_URL", "postgres://u:sekret@h/x")
            .arg("--help"),
    )
    .await;
    assert!(
        ["DATABASE_URL", "  70 ", "  74 "]
            .iter()
            .all(|word| help.out.contains(word))
            && !help.out.contains("sekret"),
        "{help:?}"
    );
}
