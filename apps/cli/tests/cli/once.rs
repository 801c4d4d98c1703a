//! `dblock run --once`

use std::time::Duration;

use dblock::store::RecordState;
use dblock::{LockError, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use crate::program::{Said, dblock, ended, said};

on_every_store!(databases:
    what_has_succeeded_is_not_run_again,
    what_has_failed_is_run_again,
    after_an_interruption_somebody_decides,
    whatever_result_somebody_records_is_a_success,
    a_result_that_was_not_kept_is_a_success,
    a_signal_before_the_command_starts_leaves_no_doubt,
    of_two_at_once_one_runs,
);

/// A service has done the work, and its result was too large.
async fn a_result_that_was_not_kept_is_a_success(backend: Backend) {
    let runs = Runs::new(&backend);
    let options = RunOptions::new(Duration::from_hours(1), OnCrash::Stop).max_result(1);
    let locks = backend.manager().await;
    let paid = locks.run_once("pay:1", options, async |_| {
        Ok::<_, LockError>("receipt 7".to_owned())
    });
    paid.await.unwrap();
    let told = runs.run(&STOP, "true").await;
    assert_eq!((told.code, runs.count()), (Some(0), 0), "{told:?}");
    assert!(told.err.contains("has succeeded before"), "{told:?}");
}

/// A run that writes a line into a file each time.
struct Runs {
    folder: TempDir,
    backend: Backend,
}

impl Runs {
    fn new(backend: &Backend) -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            backend: backend.clone(),
        }
    }

    fn command(&self, options: &[&str], script: &str) -> Command {
        let mut command = dblock(&self.backend);
        command
            .args(["run", "--once", "pay:1", "--remember", "1h"])
            .args(options)
            .args(["--", "sh", "-c", &format!("echo ran >> count; {script}")])
            .current_dir(self.folder.path());
        command
    }

    async fn run(&self, options: &[&str], script: &str) -> Said {
        said(&mut self.command(options, script)).await
    }

    fn count(&self) -> usize {
        let text = std::fs::read_to_string(self.folder.path().join("count"));
        text.unwrap_or_default().lines().count()
    }
}

const STOP: [&str; 2] = ["--on-crash", "stop"];

async fn what_has_succeeded_is_not_run_again(backend: Backend) {
    let runs = Runs::new(&backend);
    let told = runs.run(&STOP, "echo $DBLOCK_KEY").await;
    assert_eq!((told.code, &*told.out, &*told.err), (Some(0), "pay:1\n", ""));
    assert!(backend.the_row("pay:1").await.is_free());
    let told = runs.run(&STOP, "").await;
    assert_eq!((told.code, runs.count()), (Some(0), 1), "{told:?}");
    assert!(told.err.contains("has succeeded before"), "{told:?}");
    let told = runs.run(&["--on-crash", "retry", "--json"], "").await;
    let report = json!({"key": "pay:1", "outcome": "already_done", "exit_code": 0});
    assert_eq!((told.err_json(), runs.count()), (report, 1));
}

async fn what_has_failed_is_run_again(backend: Backend) {
    let runs = Runs::new(&backend);
    let told = runs.run(&STOP, "exit 3").await;
    assert_eq!(told.code, Some(3), "{told:?}");
    let record = said(dblock(&backend).args(["records", "show", "pay:1", "--json"])).await;
    assert_eq!(record.json()["error"], "exit code 3");
    let told = runs.run(&[&STOP[..], &["--json"]].concat(), "").await;
    let report = told.err_json();
    assert_eq!(
        (&report["outcome"], &report["exit_code"]),
        (&"exited".into(), &0.into())
    );
    assert_eq!((told.code, runs.count()), (Some(0), 2));
}

async fn after_an_interruption_somebody_decides(backend: Backend) {
    let runs = Runs::new(&backend);
    let told = runs.run(&STOP, "kill -KILL $$").await;
    assert_eq!(told.code, Some(128 + 9), "{told:?}");
    let show = format!("dblock --table {} records show pay:1\n", backend.table);
    assert!(
        told.err.contains("was interrupted") && told.err.ends_with(&show),
        "{told:?}"
    );
    let told = runs.run(&STOP, "").await;
    assert_eq!((told.code, runs.count()), (Some(79), 1), "{told:?}");
    assert!(
        told.err.contains(" records resolve`") && !told.err.contains("LockManager"),
        "{told:?}"
    );
    // Another one may be run again, whatever became of it.
    let told = runs.run(&["--on-crash", "retry"], "kill -KILL $$").await;
    assert_eq!((told.code, runs.count()), (Some(128 + 9), 2), "{told:?}");
    let resolve = ["records", "resolve", "pay:1", "--run-again", "--yes"];
    assert_eq!(said(dblock(&backend).args(resolve)).await.code, Some(0));
    let told = runs.run(&STOP, "").await;
    assert_eq!((told.code, runs.count()), (Some(0), 3), "{told:?}");
}

/// A command has no result, and its record may be given any.
async fn whatever_result_somebody_records_is_a_success(backend: Backend) {
    let runs = Runs::new(&backend);
    for value in ["null", "\"receipt 7\"", "{\"cents\": 5}"] {
        let count = runs.count();
        runs.run(&STOP, "kill -KILL $$").await;
        let resolve = ["records", "resolve", "pay:1", "--succeeded", value, "--yes"];
        assert_eq!(said(dblock(&backend).args(resolve)).await.code, Some(0));
        let told = runs.run(&STOP, "").await;
        assert_eq!(
            (told.code, runs.count()),
            (Some(0), count + 1),
            "{value}: {told:?}"
        );
        assert!(told.err.contains("has succeeded before"), "{told:?}");
        let forget = ["records", "forget", "pay:1", "--yes"];
        assert_eq!(said(dblock(&backend).args(forget)).await.code, Some(0));
    }
}

/// Nothing was done, so nobody needs to find out what was done.
async fn a_signal_before_the_command_starts_leaves_no_doubt(backend: Backend) {
    let runs = Runs::new(&backend);
    let locks = backend.manager().await;
    for _ in 0..50 {
        let mut child = runs.command(&STOP, "").spawn().unwrap();
        let has_begun = async || {
            let record = locks.admin().record::<serde_json::Value>("pay:1").await.unwrap();
            record.is_some_and(|found| found.record.state == RecordState::Processing)
        };
        while !has_begun().await && child.try_wait().unwrap().is_none() {}
        if let Some(id) = child.id() {
            kill(Pid::from_raw(id.cast_signed()), Signal::SIGTERM).unwrap();
        }
        let told = ended(child).await;
        if told.code == Some(143) && !told.err.contains("was interrupted") {
            let count = runs.count();
            let told = runs.run(&STOP, "").await;
            assert_eq!((told.code, runs.count()), (Some(0), count + 1), "{told:?}");
            return;
        }
        // It came too late.
        let resolve = ["records", "resolve", "pay:1", "--run-again", "--yes"];
        said(dblock(&backend).args(resolve)).await;
        said(dblock(&backend).args(["records", "forget", "pay:1", "--yes"])).await;
    }
    panic!("the signal came too late each time");
}

async fn of_two_at_once_one_runs(backend: Backend) {
    let runs = Runs::new(&backend);
    let options = [&STOP[..], &["--wait", "20s"]].concat();
    let [mut one, mut other] = [
        runs.command(&options, "sleep 0.3"),
        runs.command(&options, "sleep 0.3"),
    ];
    let (one, other) = tokio::join!(said(&mut one), said(&mut other));
    assert_eq!((one.code, other.code), (Some(0), Some(0)), "{one:?} {other:?}");
    assert_eq!(runs.count(), 1);
}

#[tokio::test]
async fn what_is_remembered_and_what_a_crash_means_must_be_said() {
    for arguments in [
        &["--once", "a"][..],
        &["--once", "a", "--remember", "1h"],
        &["--once", "a", "--on-crash", "stop"],
        &["--key", "a", "--on-crash", "stop"],
        &[
            "--key",
            "a",
            "--once",
            "a",
            "--remember",
            "1h",
            "--on-crash",
            "stop",
        ],
        &[
            "--once",
            "a",
            "--remember",
            "1h",
            "--on-crash",
            "stop",
            "--hold-min",
            "1s",
        ],
        &[],
    ] {
        let told = said(
            crate::program::bare()
                .arg("run")
                .args(arguments)
                .args(["--", "true"]),
        )
        .await;
        assert_eq!(told.code, Some(64), "{arguments:?}: {told:?}");
    }
}
