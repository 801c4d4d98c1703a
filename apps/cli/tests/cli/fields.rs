//! The fields of all JSON answers, in one place. They are a promise to programs: add to this list, and change
//! nothing in it.

use std::collections::BTreeSet;
use std::time::Duration;

use dblock::{LockError, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::program::{dblock, said};

on_every_store!(sqlite:
    every_answer_has_the_fields_that_were_promised,
    every_key_is_what_the_next_command_takes,
);

const PROMISED: &[(&str, &str)] = &[
    (
        "ls",
        "locks truncated locks.acquired_at locks.deadlock locks.expires_at locks.fence_token locks.held_seconds locks.holder locks.holds \
         locks.key locks.next locks.next.holder locks.next.owner locks.next.waiting_seconds locks.owner \
         locks.remaining_seconds locks.revoked locks.shared locks.state locks.transaction locks.wanted",
    ),
    (
        "show a",
        "acquired_at expires_at fence_token held_seconds holder holds key next next.holder next.owner \
         next.waiting_seconds owner remaining_seconds revoked shared state transaction wanted",
    ),
    ("revoke a", "key was_held"),
    ("force-release a --yes", "key was_held"),
    ("purge --yes --idle 1d", "deleted"),
    ("migrate", "migrated table"),
    (
        "doctor",
        "faults findings findings.check findings.found findings.meaning findings.remedy findings.severity",
    ),
    (
        "run -k b true",
        "exit_code fence_token held_seconds key message outcome waited_seconds",
    ),
    ("show nothing", "error exit_code message"),
    (
        "records list",
        "records records.attempts records.fence_token records.finished_at records.holder records.key \
         records.remembered_until records.run_state records.started_at records.state truncated",
    ),
    (
        "records show pay",
        "attempts error fence_token finished_at holder key lock_held remembered_until result run_state started_at state",
    ),
    (
        "run --once pay --remember 1h --on-crash stop true",
        "exit_code key outcome",
    ),
    ("records forget pay --yes", "forgotten key"),
    ("records resolve crashed --run-again --yes", "key resolved"),
];

/// An answer to the command with these arguments, and the fields that were promised.
struct Answer {
    arguments: &'static str,
    promised: &'static str,
    value: Value,
}

/// The answers of all commands in a namespace, or in none.
async fn answers(backend: &Backend, namespace: Option<&str>) -> Vec<Answer> {
    let options: Vec<_> = namespace.iter().flat_map(|name| ["--namespace", name]).collect();
    let manager = async || {
        let builder = backend.builder();
        let builder = match namespace {
            Some(namespace) => builder.namespace(namespace),
            None => builder,
        };
        builder.build().await.unwrap()
    };
    let (locks, other) = (manager().await, manager().await);
    let guard = locks.lock("a").acquire().await.unwrap();
    // Somebody who waits, so that nothing in the row is missing.
    let waits = tokio::spawn(async move { other.lock("a").wait_forever().acquire().await });
    while locks
        .admin()
        .get("a")
        .await
        .unwrap()
        .is_none_or(|row| row.next.is_none())
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let run = RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let paid = async |_| Ok::<_, LockError>("receipt 7".to_owned());
    locks.run_once("pay", run, paid).await.unwrap();
    let crash = ["--once", "crashed", "--remember", "1h", "--on-crash", "stop"];
    let kill = ["--", "sh", "-c", "kill -KILL $$"];
    let mut crashed = dblock(backend);
    crashed.args(&options).arg("run").args(crash).args(kill);
    assert_eq!(said(&mut crashed).await.code, Some(128 + 9));

    let mut answers = vec![watched(backend, &options).await];
    for (arguments, promised) in PROMISED {
        let command = arguments.split(' ').chain(["--json"]);
        // After the name of its command `run` takes no options of ours.
        let words: Vec<_> = match arguments.strip_prefix("run ") {
            Some(rest) => ["run", "--json"].into_iter().chain(rest.split(' ')).collect(),
            None => command.collect(),
        };
        let told = said(dblock(backend).args(&options).args(&words)).await;
        let value = if told.out.is_empty() {
            told.err_json()
        } else {
            told.json()
        };
        answers.push(Answer {
            arguments,
            promised,
            value,
        });
    }
    waits.abort();
    drop(guard);
    answers
}

/// The first line of `watch`, which does not end.
async fn watched(backend: &Backend, options: &[&str]) -> Answer {
    let mut watch = dblock(backend);
    let mut child = watch.args(options).args(["watch", "--json"]).spawn().unwrap();
    let line = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .next_line()
        .await;
    child.kill().await.unwrap();
    Answer {
        arguments: "watch",
        promised: "event fence_token holder key time",
        value: serde_json::from_str(&line.unwrap().unwrap()).unwrap(),
    }
}

async fn every_answer_has_the_fields_that_were_promised(backend: Backend) {
    let document = include_str!("../../../../docs/cli.md");
    for answer in answers(&backend, None).await {
        let mut found = BTreeSet::new();
        fields(&answer.value, "", &mut found);
        let promised: BTreeSet<String> = answer.promised.split_whitespace().map(str::to_owned).collect();
        assert_eq!(found, promised, "{:?}: {}", answer.arguments, answer.value);
        for name in promised.iter().filter_map(|path| path.rsplit('.').next()) {
            assert!(
                document.contains(&format!("`{name}`")),
                "docs/cli.md does not have `{name}`"
            );
        }
    }
}

async fn every_key_is_what_the_next_command_takes(backend: Backend) {
    let typed = ["a", "b", "crashed", "pay"];
    let mut wrong = Vec::new();
    for answer in answers(&backend, Some("billing")).await {
        let mut found = Vec::new();
        keys(&answer.value, &mut found);
        assert_eq!(
            found.is_empty(),
            !answer.promised.contains("key"),
            "{}",
            answer.arguments
        );
        if !found.iter().all(|key| typed.contains(&&**key)) {
            wrong.push((answer.arguments, found));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The values of the fields named `key`.
fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(object) => {
            found.extend(object.get("key").map(|key| key.as_str().unwrap().to_owned()));
            object.values().for_each(|value| keys(value, found));
        }
        Value::Array(entries) => entries.iter().for_each(|entry| keys(entry, found)),
        _ => {}
    }
}

/// The paths of all fields; a list's are those of its entries.
fn fields(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let path = [path, name].join(if path.is_empty() { "" } else { "." });
                fields(value, &path, found);
                found.insert(path);
            }
        }
        Value::Array(entries) => entries.iter().for_each(|entry| fields(entry, path, found)),
        _ => {}
    }
}
