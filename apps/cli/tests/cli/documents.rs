//! The commands that the documents name.

use std::collections::BTreeSet;
use std::time::Duration;

use dblock::{LockError, OnCrash, Run, RunOptions};
use dblock_tests::{Backend, on_every_store};
use serde_json::Value;

use crate::program::{bare, dblock, said};

on_every_store!(sqlite:
    the_commands_of_the_runbooks_show_the_lock,
    the_commands_of_the_runbooks_decide_about_a_run,
);

const OPERATIONS: &str = include_str!("../../../../docs/operations.md");
const OTHERS: [&str; 5] = [
    include_str!("../../../../README.md"),
    include_str!("../../../../docs/quickstart.md"),
    include_str!("../../../../docs/setup.md"),
    include_str!("../../../../docs/cli.md"),
    include_str!("../../../../docs/run-once.md"),
];

async fn the_commands_of_the_runbooks_show_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.lock("order:42").acquire().await.unwrap();
    let lines = commands("A key is stuck");
    for line in &lines {
        let told = said(dblock(&backend).args(line)).await;
        assert_eq!(told.code, Some(0), "{line:?}: {told:?}");
        assert!(told.out.contains("order:42"), "{line:?}: {told:?}");
    }
    assert_eq!(lines.len(), 2);
    guard.release().await.unwrap();
}

async fn the_commands_of_the_runbooks_decide_about_a_run(backend: Backend) {
    let locks = backend.manager().await;
    let stop = RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let silent = async |run: Run| {
        run.leave_in_doubt();
        Err::<Value, _>(LockError::NoManager)
    };
    let lines = commands("A run is in doubt");
    for line in &lines {
        locks.run_once("pay:42", stop.clone(), silent).await.unwrap_err();
        let decides = line.iter().any(|word| word == "resolve");
        // Elsewhere than on a terminal nobody can be asked.
        let yes = decides.then_some("--yes");
        let told = said(dblock(&backend).args(line).args(yes)).await;
        assert_eq!(told.code, Some(0), "{line:?}: {told:?}");
        assert!(decides || told.out.contains("pay:42"), "{line:?}: {told:?}");
    }
    assert_eq!(lines.len(), 4);
    let replayed = locks.run_once("pay:42", stop, silent).await.unwrap();
    assert_eq!(replayed.into_inner()["number"], 7);
}

/// The commands of a runbook, each as its words without `dblock`.
fn commands(runbook: &str) -> Vec<Vec<String>> {
    let heading = format!("\n### {runbook}\n");
    let (_, text) = OPERATIONS.split_once(&heading).expect(runbook);
    let text = text.split("\n###").next().unwrap();
    let blocks = text.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    lines
        .filter(|line| !line.trim().is_empty() && !line.trim().starts_with("export "))
        .map(|line| {
            let words = line.trim().strip_prefix("dblock ").expect(line).split(' ');
            words.map(|word| word.trim_matches('\'').to_owned()).collect()
        })
        .collect()
}

#[tokio::test]
async fn every_command_that_is_named_is_there() {
    let mut names = BTreeSet::new();
    for document in OTHERS.into_iter().chain([OPERATIONS]) {
        let mentions = document.split("`dblock ").skip(1);
        let words = mentions.map(|rest| rest.split([' ', '`', '\n']).next().unwrap());
        names.extend(words.filter(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-')));
    }
    assert!(names.contains("revoke") && names.len() > 8, "{names:?}");
    for name in names {
        let told = said(bare().args([name, "--help"])).await;
        assert_eq!(told.code, Some(0), "dblock {name}: {told:?}");
    }
}
