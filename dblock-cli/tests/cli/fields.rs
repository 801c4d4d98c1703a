//! The fields of all JSON answers, in one place. They are a promise to programs: add to this list, and change nothing in it.

use std::collections::BTreeSet;
use std::time::Duration;

use dblock::{LockError, LockOptions, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use serde_json::Value;

use crate::program::{dblock, said};

on_every_store!(sqlite: every_answer_has_the_fields_that_were_promised);

const PROMISED: &[(&str, &str)] = &[
    (
        "ls",
        "locks truncated locks.acquired_at locks.expires_at locks.fence_token locks.held_seconds locks.holder locks.holds \
         locks.key locks.next locks.next.holder locks.next.owner locks.next.waiting_seconds locks.owner \
         locks.remaining_seconds locks.revoked locks.state locks.wanted",
    ),
    (
        "show a",
        "acquired_at expires_at fence_token held_seconds holder holds key next next.holder next.owner \
         next.waiting_seconds owner remaining_seconds revoked state wanted",
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
        "exit_code fence_token held_seconds key outcome waited_seconds",
    ),
    ("show nothing", "error exit_code message"),
    (
        "records list",
        "records records.attempts records.fence_token records.finished_at records.holder records.key \
         records.remembered_until records.started_at records.state truncated",
    ),
    (
        "records show pay",
        "attempts error fence_token finished_at holder key lock_held remembered_until result started_at state",
    ),
    ("records forget pay --yes", "forgotten key"),
];

async fn every_answer_has_the_fields_that_were_promised(backend: Backend) {
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    // Somebody who waits, so that nothing in the row is missing.
    let waits = tokio::spawn(async move { other.acquire("a", LockOptions::new().wait_forever()).await });
    while locks.get("a").await.unwrap().is_none_or(|row| row.next.is_none()) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let options = RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let paid = async |_| Ok::<_, LockError>("receipt 7".to_owned());
    locks.run_once("pay", options, paid).await.unwrap();

    let document = include_str!("../../../docs/cli.md");
    for (arguments, promised) in PROMISED {
        let command = arguments.split(' ').chain(["--json"]);
        // After the name of its command `run` takes no options of ours.
        let arguments: Vec<_> = match arguments.strip_prefix("run ") {
            Some(rest) => ["run", "--json"].into_iter().chain(rest.split(' ')).collect(),
            None => command.collect(),
        };
        let told = said(dblock(&backend).args(&arguments)).await;
        let answer = if told.out.is_empty() {
            told.err_json()
        } else {
            told.json()
        };
        let mut found = BTreeSet::new();
        fields(&answer, "", &mut found);
        let promised: BTreeSet<String> = promised.split_whitespace().map(str::to_owned).collect();
        assert_eq!(found, promised, "{arguments:?}: {told:?}");
        for name in promised.iter().filter_map(|path| path.rsplit('.').next()) {
            assert!(
                document.contains(&format!("`{name}`")),
                "docs/cli.md does not have `{name}`"
            );
        }
    }
    waits.abort();
    drop(guard);
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
