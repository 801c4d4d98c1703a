//! The commands that the documents name.

use std::collections::BTreeSet;

use dblock::LockOptions;
use dblock_tests::{Backend, on_every_store};

use crate::program::{bare, dblock, said};

on_every_store!(sqlite: the_commands_of_the_runbooks_show_the_lock);

const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const OTHERS: [&str; 3] = [
    include_str!("../../../README.md"),
    include_str!("../../../docs/cli.md"),
    include_str!("../../../docs/run-once.md"),
];

async fn the_commands_of_the_runbooks_show_the_lock(backend: Backend) {
    let locks = backend.manager().await;
    let guard = locks.acquire("order:42", LockOptions::new()).await.unwrap();
    let blocks = OPERATIONS.split("```sh\n").skip(1);
    let lines = blocks
        .flat_map(|block| block.split("```").next().unwrap().lines())
        .filter(|line| !line.trim().is_empty() && !line.starts_with("export "));
    let mut count = 0;
    for line in lines {
        let arguments = line.trim().strip_prefix("dblock ").expect(line);
        let told = said(dblock(&backend).args(arguments.split(' '))).await;
        assert_eq!(told.code, Some(0), "{line}: {told:?}");
        assert!(told.out.contains("order:42"), "{line}: {told:?}");
        count += 1;
    }
    assert!(count > 1, "only {count} commands were found");
    guard.release().await.unwrap();
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
