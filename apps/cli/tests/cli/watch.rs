//! `dblock watch`

use std::time::Duration;

use dblock_tests::{Backend, on_every_store};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::program::dblock;

on_every_store!(databases: changes_are_told_as_they_happen);

async fn changes_are_told_as_they_happen(backend: Backend) {
    backend.die_inside("old", Duration::from_mins(10)).await;
    let mut child = dblock(&backend)
        .args(["watch", "--every", "100ms", "--json"])
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = async || {
        let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await;
        let event: Value = serde_json::from_str(&line.unwrap().unwrap().unwrap()).unwrap();
        let mut fields: Vec<_> = event.as_object().unwrap().keys().cloned().collect();
        fields.sort_unstable();
        assert_eq!(fields, ["event", "fence_token", "holder", "key", "time"]);
        (
            event["event"].as_str().unwrap().to_owned(),
            event["key"].as_str().unwrap().to_owned(),
        )
    };
    let event = |event: &str, key: &str| (event.to_owned(), key.to_owned());
    assert_eq!(told().await, event("held", "old"));
    let locks = backend.manager().await;
    let guard = locks.lock("new").acquire().await.unwrap();
    assert_eq!(told().await, event("held", "new"));
    locks.admin().revoke("new").await.unwrap();
    assert_eq!(told().await, event("revoked", "new"));
    guard.release().await.unwrap();
    assert_eq!(told().await, event("free", "new"));
    child.kill().await.unwrap();
}
