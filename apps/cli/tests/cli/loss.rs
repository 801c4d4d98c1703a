//! Leases that end before the command does.

use std::net::ToSocketAddrs as _;
use std::time::Duration;

use dblock_tests::proxy::{Proxy, Traffic};
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, on_every_store};
use tokio::process::Command;

use crate::program::{Script, bare, is_alive};

on_every_store!(databases:
    a_revoked_lock_ends_the_command,
    a_command_that_ignores_term_is_killed,
    a_lock_freed_by_force_kills_the_command,
    a_lock_freed_by_force_is_told_when_the_command_ends_first,
    max_hold_ends_the_command,
);
on_every_store!(servers:
    without_the_database_the_command_ends_before_the_lease,
    a_stop_and_a_release_that_is_not_confirmed_are_both_told,
    a_release_goes_on_while_others_have_the_row_locked,
);

/// Says on TERM what it got, and ends well.
const ENDS_ON_TERM: &str = "trap 'touch told; exit 0' TERM; touch ready; while :; do sleep 0.02; done";
/// Goes on, and so does its child.
const IGNORES: &str = "trap 'touch told' TERM; (trap '' TERM; while :; do sleep 0.1; done) & echo $! > id; touch ready; \
                       while :; do sleep 0.02; done";

async fn a_revoked_lock_ends_the_command(backend: Backend) {
    let mut run = Script::start(&backend, &["--ttl", "6s"], ENDS_ON_TERM);
    run.file("ready").await;
    assert!(backend.manager().await.admin().revoke("a").await.unwrap());
    let told = run.ended().await;
    assert_eq!(told.code, Some(76), "{told:?}");
    assert!(
        run.path("told").exists() && told.err.contains("revoked"),
        "{told:?}"
    );
    assert!(backend.the_row("a").await.is_free());
}

async fn a_command_that_ignores_term_is_killed(backend: Backend) {
    let mut run = Script::start(&backend, &["--ttl", "6s", "--grace", "500ms", "--json"], IGNORES);
    run.file("ready").await;
    let grandchild = run.process("id").await;
    assert!(backend.manager().await.admin().revoke("a").await.unwrap());
    let told = run.ended().await;
    let report = told.err_json();
    assert_eq!(
        (told.code, &report["outcome"]),
        (Some(76), &"stopped".into()),
        "{told:?}"
    );
    assert!(run.path("told").exists() && !is_alive(grandchild));
    let row = backend.the_row("a").await;
    assert!(
        row.is_free() && row.now < row.expire_at,
        "killed before the lease ended: {row:?}"
    );
}

/// Somebody else may have the lock already: there is no time for TERM.
async fn a_lock_freed_by_force_kills_the_command(backend: Backend) {
    let mut run = Script::start(&backend, &["--ttl", "6s"], IGNORES);
    run.file("ready").await;
    let grandchild = run.process("id").await;
    assert!(backend.manager().await.admin().force_release("a").await.unwrap());
    let told = run.ended().await;
    assert_eq!(told.code, Some(76), "{told:?}");
    assert!(!is_alive(grandchild));
}

/// No renewal has seen it. Somebody else may have had the lock beside the command.
async fn a_lock_freed_by_force_is_told_when_the_command_ends_first(backend: Backend) {
    for options in [&["--json"][..], &["--json", "--hold-min", "10s"]] {
        let waits = "touch ready; while ! [ -e go ]; do sleep 0.02; done";
        let mut run = Script::start(&backend, options, waits);
        run.file("ready").await;
        assert!(backend.manager().await.admin().force_release("a").await.unwrap());
        std::fs::write(run.path("go"), "").unwrap();
        let told = run.ended().await;
        let report = told.err_json();
        assert_eq!(
            (
                told.code,
                told.err.lines().count(),
                &report["outcome"],
                &report["exit_code"]
            ),
            (Some(76), 1, &"lost".into(), &76.into()),
            "{told:?}"
        );
        assert!(
            report["message"]
                .as_str()
                .is_some_and(|message| message.contains("lost")),
            "{told:?}"
        );
    }
}

async fn max_hold_ends_the_command(backend: Backend) {
    let mut run = Script::start(&backend, &["--max-hold", "6s", "--grace", "2s"], ENDS_ON_TERM);
    let told = run.ended().await;
    assert_eq!(told.code, Some(76), "{told:?}");
    assert!(run.path("told").exists(), "{told:?}");
    assert!(backend.the_row("a").await.is_free());
}

async fn without_the_database_the_command_ends_before_the_lease(backend: Backend) {
    // Not if the machine stands still just then.
    for _ in 0..5 {
        if ends_before_the_lease(&backend).await {
            return;
        }
        backend
            .until("a", Duration::from_secs(20), |row| row.expire_at < row.now)
            .await;
    }
    panic!("killed after the lease, or without a TERM, five times");
}

/// `dblock` with a proxy before the database.
fn behind_a_proxy(backend: &Backend) -> (Proxy, Command) {
    let url = backend.url().unwrap();
    let (before, place) = url.rsplit_once('@').unwrap();
    let (address, name) = place.split_once('/').unwrap();
    let proxy = Proxy::start(address.to_socket_addrs().unwrap().next().unwrap());
    let mut command = bare();
    command.env("DATABASE_URL", format!("{before}@{}/{name}", proxy.address()));
    command.args(["--table", &backend.table]);
    (proxy, command)
}

async fn a_stop_and_a_release_that_is_not_confirmed_are_both_told(backend: Backend) {
    let ends = "trap 'touch told; while ! [ -e go ]; do sleep 0.02; done; exit 0' TERM; touch ready; \
                while :; do sleep 0.02; done";
    let (proxy, command) = behind_a_proxy(&backend);
    let mut run = Script::start_by(command, &["--ttl", "15s", "--json"], ends);
    run.file("ready").await;
    assert!(backend.manager().await.admin().revoke("a").await.unwrap());
    run.file("told").await;
    proxy.set(Traffic::BlackHole);
    std::fs::write(run.path("go"), "").unwrap();
    let told = run.ended().await;
    let report = told.err_json();
    let message = report["message"].as_str().unwrap();
    assert!(
        message.contains("the command was stopped")
            && message.contains("the lock is free when its lease has ended"),
        "{told:?}"
    );
    assert_eq!(
        (told.code, &report["outcome"]),
        (Some(76), &"stopped".into()),
        "{told:?}"
    );
}

async fn a_release_goes_on_while_others_have_the_row_locked(backend: Backend) {
    let ends = "touch ready; while ! [ -e go ]; do sleep 0.02; done";
    let mut run = Script::start(&backend, &["--ttl", "10min"], ends);
    run.file("ready").await;
    let mut other = Transaction::begin(&backend).await;
    let lock = format!("SELECT 1 FROM {} WHERE lock_key = 'a' FOR UPDATE", backend.table);
    other.execute(lock).await;
    std::fs::write(run.path("go"), "").unwrap();
    let told = run.line().await;
    assert!(
        told.contains("the lock is free when its lease has ended"),
        "{told}"
    );
    // A manager that shuts down gives up sooner.
    tokio::time::sleep(Duration::from_secs(3)).await;
    other.commit().await;
    let told = run.ended().await;
    assert_eq!(told.code, Some(0), "{told:?}");
    assert!(backend.the_row("a").await.is_free(), "{told:?}");
}

/// Whether the command was told by TERM, and all of its processes ended before the lease did.
async fn ends_before_the_lease(backend: &Backend) -> bool {
    let (proxy, command) = behind_a_proxy(backend);
    let mut run = Script::start_by(command, &["--ttl", "3s", "--grace", "500ms"], IGNORES);
    run.file("ready").await;
    let processes = [run.process("id").await];
    proxy.set(Traffic::BlackHole);
    let told = tokio::time::timeout(Duration::from_mins(1), async {
        // The release cannot be written: what matters is when the processes are gone.
        crate::program::until("killed", || !processes.iter().any(|process| is_alive(*process))).await;
        let row = backend.the_row("a").await;
        (row.now < row.expire_at, run.ended().await)
    });
    let (in_time, told) = told.await.unwrap();
    assert_eq!(told.code, Some(76), "{told:?}");
    in_time && run.path("told").exists()
}
