//! `dblock records`

use std::slice::from_ref;
use std::time::Duration;

use dblock::{LockError, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use serde_json::{Value, json};

use crate::program::{Said, dblock, said};

on_every_store!(databases: records_are_listed_shown_and_forgotten, what_has_crashed_is_told_from_what_runs, a_run_in_doubt_is_decided_by_hand);

/// Fields of the JSON are a promise.
const RECORD: [&str; 9] = [
    "attempts",
    "fence_token",
    "finished_at",
    "holder",
    "key",
    "remembered_until",
    "run_state",
    "started_at",
    "state",
];

fn fields(value: &Value) -> Vec<&str> {
    let mut fields: Vec<_> = value.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

async fn records(backend: &Backend, arguments: &[&str]) -> Said {
    said(dblock(backend).arg("records").args(arguments)).await
}

fn stop() -> RunOptions {
    RunOptions::new(Duration::from_hours(1), OnCrash::Stop)
}

async fn records_are_listed_shown_and_forgotten(backend: Backend) {
    let locks = backend.manager().await;
    let paid = async |_| Ok::<_, LockError>("receipt 7".to_owned());
    locks.run_once("pay:1", stop(), paid).await.unwrap();
    let fails = async |_| Err::<String, _>(LockError::NoManager);
    locks.run_once("pay:2", stop(), fails).await.unwrap_err();

    let told = records(&backend, &["list"]).await;
    assert!(
        told.out.contains("pay:1") && told.out.contains("failed") && !told.out.contains("receipt"),
        "{told:?}"
    );
    let all = records(&backend, &["list", "--json", "--prefix", "pay"])
        .await
        .json();
    assert_eq!(fields(&all), ["records", "truncated"]);
    assert_eq!(fields(&all["records"][0]), RECORD);
    assert_eq!(
        (&all["records"][1]["state"], &all["truncated"]),
        (&"failed".into(), &false.into())
    );
    let failed = records(&backend, &["list", "--state", "failed", "--json"])
        .await
        .json();
    assert_eq!(
        (
            &failed["records"][0]["key"],
            failed["records"].as_array().unwrap().len()
        ),
        (&"pay:2".into(), 1)
    );
    let cut = records(&backend, &["list", "--limit", "1", "--json"])
        .await
        .json();
    assert_eq!(cut["truncated"], true);

    let one = records(&backend, &["show", "pay:1", "--json"]).await.json();
    assert_eq!(
        fields(&one),
        [
            &RECORD[..1],
            &["error"],
            &RECORD[1..5],
            &["lock_held"],
            &RECORD[5..6],
            &["result"],
            &RECORD[6..]
        ]
        .concat()
    );
    assert_eq!(
        (&one["result"], &one["error"], &one["lock_held"]),
        (&"receipt 7".into(), &Value::Null, &false.into())
    );
    let told = records(&backend, &["show", "pay:2"]).await;
    assert!(
        told.out.contains("failed") && told.out.contains("error"),
        "{told:?}"
    );
    let told = records(&backend, &["show", "pay"]).await;
    assert_eq!((told.code, &*told.out), (Some(1), ""), "{told:?}");

    let told = records(&backend, &["forget", "pay:1"]).await;
    assert_eq!(told.code, Some(64), "it needs --yes: {told:?}");
    let told = records(&backend, &["forget", "pay:1", "--yes", "--json"]).await;
    assert_eq!(
        (told.code, told.json()),
        (Some(0), json!({"key": "pay:1", "forgotten": true}))
    );
    assert!(locks.run_once("pay:1", stop(), paid).await.unwrap().has_run());
    for arguments in [
        &["show"][..],
        &["forget", "-y"],
        &["resolve", "-y", "--run-again"],
    ] {
        let told = records(&backend, &[arguments, &["pay:3", "--json"]].concat()).await;
        let error = told.err_json();
        assert_eq!(
            (told.code, &*told.out, &error["error"], &error["exit_code"]),
            (Some(1), "", &"no".into(), &1.into()),
            "{arguments:?}: {error}"
        );
    }
}

/// The keys and what becomes of them.
async fn states(backend: &Backend, arguments: &[&str]) -> Vec<(Value, Value)> {
    let told = records(backend, &[&["list", "--json"], arguments].concat())
        .await
        .json();
    let rows = told["records"].as_array().unwrap().iter();
    rows.map(|row| (row["key"].clone(), row["run_state"].clone()))
        .collect()
}

/// Somebody must decide about the one, and leave the other alone.
async fn what_has_crashed_is_told_from_what_runs(backend: Backend) {
    let locks = backend.manager().await;
    let (inside, mut entered) = tokio::sync::mpsc::unbounded_channel();
    let begin = |key: &'static str| {
        let (locks, inside) = (locks.clone(), inside.clone());
        tokio::spawn(async move {
            let body = async |_| {
                inside.send(()).unwrap();
                std::future::pending::<Result<String, LockError>>().await
            };
            locks.run_once(key, stop(), body).await
        })
    };
    let (runs, crashes) = (begin("a"), begin("b"));
    for _ in 0..2 {
        entered.recv().await.unwrap();
    }
    crashes.abort();
    crashes.await.unwrap_err();
    backend.until_free("b").await;
    // A lock by hand does not make it a running one.
    let guard = locks.lock("b").acquire().await.unwrap();
    let (a, b) = (("a".into(), "running".into()), ("b".into(), "crashed".into()));
    assert_eq!(states(&backend, &[]).await, [a.clone(), b.clone()]);
    assert_eq!(
        states(&backend, &["--state", "crashed", "--limit", "1"]).await,
        from_ref(&b)
    );
    assert_eq!(states(&backend, &["--state", "in-doubt"]).await, from_ref(&b));
    assert_eq!(states(&backend, &["--state", "running"]).await, from_ref(&a));
    assert_eq!(states(&backend, &["--state", "processing"]).await, [a, b]);
    let told = records(&backend, &["list"]).await;
    assert!(
        told.out.contains("running") && told.out.contains("crashed"),
        "{told:?}"
    );
    guard.release().await.unwrap();
    runs.abort();
}

async fn a_run_in_doubt_is_decided_by_hand(backend: Backend) {
    let locks = backend.manager().await;
    let (inside, entered) = tokio::sync::oneshot::channel();
    let runs = locks.clone();
    let run = tokio::spawn(async move {
        let body = async |_| {
            inside.send(()).unwrap();
            std::future::pending::<Result<String, LockError>>().await
        };
        runs.run_once("pay:1", stop(), body).await
    });
    entered.await.unwrap();
    let told = records(&backend, &["resolve", "pay:1", "--run-again", "--yes"]).await;
    assert_eq!(told.code, Some(75), "it is running: {told:?}");
    assert_eq!(states(&backend, &[]).await, [("pay:1".into(), "running".into())]);
    run.abort();
    run.await.unwrap_err();
    backend.until_free("pay:1").await;

    let told = records(&backend, &["show", "pay:1"]).await;
    assert!(told.out.contains("crashed: find out"), "{told:?}");
    let told = records(&backend, &["forget", "pay:1", "--yes"]).await;
    assert_eq!(told.code, Some(1), "{told:?}");
    assert!(told.err.contains("records resolve"), "{told:?}");
    for (arguments, code) in [
        (&["--yes"][..], 64),
        (&["--run-again", "--succeeded", "1"], 64),
        (&["--succeeded", "receipt 7", "--yes"], 64),
        (&["--succeeded", "\"receipt 7\""], 64),
        (&["--succeeded", "\"receipt 7\"", "--yes", "--remember", "1h"], 0),
        (&["--run-again", "--yes"], 1),
        (&["--run-again", "--replace", "--yes"], 64),
        // It has succeeded meanwhile, and nobody has seen that.
        (&["--succeeded", "\"receipt 9\"", "--yes"], 1),
    ] {
        let told = records(&backend, &[&["resolve", "pay:1"], arguments].concat()).await;
        assert_eq!(told.code, Some(code), "{arguments:?}: {told:?}");
    }
    let again = async |_| Err::<String, _>(LockError::NoManager);
    let replayed = locks.run_once("pay:1", stop(), again).await.unwrap();
    assert_eq!(replayed.into_inner(), "receipt 7");

    let replace = ["resolve", "pay:1", "--succeeded", "\"receipt 8\"", "--replace"];
    let asked = records(&backend, &replace).await;
    assert_eq!(asked.code, Some(64), "it needs --yes: {asked:?}");
    assert!(
        asked.err.contains("Its result is \"receipt 7\""),
        "it shows the old one: {asked:?}"
    );
    let told = records(&backend, &[&replace[..], &["--yes"]].concat()).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    let replayed = locks.run_once("pay:1", stop(), again).await.unwrap();
    assert_eq!(replayed.into_inner(), "receipt 8");
}
