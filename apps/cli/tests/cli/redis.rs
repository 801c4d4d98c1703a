//! The command on locks in Redis.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;

use crate::program::{Script, bare, said};
use crate::run::a_killed_unit_comes_back;

/// The program on locks of its own, if there is a server.
fn dblock() -> Option<impl Fn() -> Command> {
    let prefix = format!("cli_{}", uuid::Uuid::now_v7().simple());
    let url = dblock_tests::redis_url()?;
    Some(move || {
        let mut command = bare();
        command.env("DATABASE_URL", format!("{url}?prefix={prefix}"));
        command
    })
}

#[tokio::test]
async fn a_lock_in_redis_is_taken_shown_and_freed() {
    let Some(dblock) = dblock() else { return };
    assert_eq!(said(dblock().arg("migrate")).await.code, Some(0));
    let mut script = Script::start_by(
        dblock(),
        &[],
        "echo $DBLOCK_FENCE_TOKEN >draft; mv draft token; until [ -e go ]; do sleep 0.01; done",
    );
    let token = script.file("token").await;

    let shown = said(dblock().args(["show", "a", "--json"])).await.json();
    assert_eq!(shown["fence_token"].to_string(), token.trim(), "{shown}");
    let listed = said(dblock().args(["ls", "--json"])).await.json();
    assert_eq!(listed["locks"][0]["key"], "a", "{listed}");
    let busy = said(dblock().args(["run", "--key", "a", "--", "true"])).await;
    assert_eq!(busy.code, Some(75), "{busy:?}");
    std::fs::write(script.path("go"), "").unwrap();
    assert_eq!(script.ended().await.code, Some(0));

    let healthy = said(dblock().arg("doctor")).await;
    assert_eq!(healthy.code, Some(0), "{healthy:?}");
    let records = said(dblock().args(["records", "list"])).await;
    assert_eq!(records.code, Some(78), "Redis keeps none: {records:?}");
}

#[tokio::test]
async fn the_unit_of_a_killed_process_comes_back() {
    let Some(dblock) = dblock() else { return };
    assert_eq!(said(dblock().arg("migrate")).await.code, Some(0));
    a_killed_unit_comes_back(dblock).await;
}

#[tokio::test]
async fn the_page_shows_locks_in_redis() {
    let Some(dblock) = dblock() else { return };
    let mut child = dblock()
        .args(["serve", "--listen", "127.0.0.1:0", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let told = lines.next_line().await.unwrap().unwrap();
    assert!(told.contains("http://127.0.0.1:"), "{told}");
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_url_that_cannot_be_used_is_told_without_its_password() {
    for (url, code, says) in [
        ("redis://:hush@127.0.0.1:1", 69, "cannot be reached"),
        ("redis+sentinel://:hush@127.0.0.1:1", 64, "which primary"),
        (
            "redis+sentinel://:hush@127.0.0.1:1/main",
            69,
            "none of the 1 Sentinels",
        ),
        ("redis+cluster://:hush@127.0.0.1:1", 69, "cannot be reached"),
        ("redis+cluster://:hush@127.0.0.1:1?shards=0", 64, "from 1 to 256"),
        ("redis+hush://127.0.0.1:1", 64, "scheme"),
    ] {
        let told = said(bare().env("DATABASE_URL", url).arg("ls")).await;
        assert_eq!(told.code, Some(code), "{url}: {told:?}");
        assert!(told.err.contains(says) && !told.err.contains("hush"), "{told:?}");
    }
}
