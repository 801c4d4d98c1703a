//! A command under a lock.

use std::path::Path;

use dblock_tests::{Backend, on_every_store};
use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::program::{Said, Script, dblock, ended, is_alive, said, until};

on_every_store!(databases:
    the_command_has_its_arguments_and_the_lock_in_its_environment,
    the_exit_code_is_the_commands,
    a_busy_lock_is_75_and_nothing_runs,
    runs_that_wait_never_overlap,
    limited_commands_run_beside_each_other,
    the_unit_of_a_killed_process_comes_back,
    hold_min_keeps_the_lock_busy,
    hold_min_keeps_the_lock_no_longer_than_it_says,
    no_process_of_the_command_outlives_the_lock,
);
on_every_store!(sqlite: what_the_command_leaves_behind_is_reaped_while_it_runs);

fn run(backend: &Backend, options: &[&str], command: &[&str]) -> Command {
    let mut run = dblock(backend);
    run.args(["run", "--key", "a", "--wait", "20s"])
        .args(options)
        .arg("--")
        .args(command);
    run
}

/// Each would be a zombie: a server that runs for days would use up its processes.
async fn what_the_command_leaves_behind_is_reaped_while_it_runs(backend: Backend) {
    // An orphan of the group, and one that has left it.
    let orphans = "(sh -c 'echo $$ >> ids' &); (setsid sh -c 'echo $$ >> ids' &)";
    let waits = format!("{orphans}; {orphans}; while ! [ -e go ]; do sleep 0.02; done");
    let mut run = Script::start(&backend, &[], &waits);
    let ids = || std::fs::read_to_string(run.path("ids")).unwrap_or_default();
    until("they have run", || ids().lines().count() == 4).await;
    let is_gone = |id: &str| !Path::new("/proc").join(id).exists();
    until("none is left", || ids().lines().all(is_gone)).await;
    std::fs::write(run.path("go"), "").unwrap();
    assert_eq!(run.ended().await.code, Some(0));
}

async fn the_command_has_its_arguments_and_the_lock_in_its_environment(backend: Backend) {
    let script = r#"printf '%s|%s|%s' "$1" "$DBLOCK_KEY" "$DBLOCK_FENCE_TOKEN""#;
    let told = said(&mut run(
        &backend,
        &["--namespace", "jobs"],
        &["sh", "-c", script, "x", "$HOME; `a` 'b'"],
    ))
    .await;
    let row = backend.the_row("jobs:a").await;
    assert_eq!(told.out, format!("$HOME; `a` 'b'|jobs:a|{}", row.fence_token));
    assert_eq!((told.code, &*told.err), (Some(0), ""));
    assert!(row.is_free());
    assert!(row.holder.ends_with(" dblock run sh"), "{}", row.holder);
}

async fn the_exit_code_is_the_commands(backend: Backend) {
    for (command, code) in [
        (&["true"][..], 0),
        (&["sh", "-c", "exit 7"], 7),
        (&["sh", "-c", "kill -KILL $$"], 128 + 9),
        (&["/no/such/program"], 127),
        (&["/dev/null"], 126),
    ] {
        let told = said(&mut run(&backend, &[], command)).await;
        assert_eq!(told.code, Some(code), "{command:?}: {told:?}");
        // A short name needs no `--`, as with flock.
        assert!(backend.the_row("a").await.is_free(), "after {command:?}");
    }
    let told = said(dblock(&backend).args(["run", "-k", "a", "sh", "-c", "exit 4"])).await;
    assert_eq!(told.code, Some(4), "{told:?}");
    let told = said(&mut run(&backend, &["--json"], &["sh", "-c", "exit 7"])).await;
    let report = told.err_json();
    assert_eq!(
        (&report["outcome"], &report["exit_code"]),
        (&"exited".into(), &7.into())
    );
    let mut fields: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    fields.sort_unstable();
    let expected = [
        "exit_code",
        "fence_token",
        "held_seconds",
        "key",
        "message",
        "outcome",
        "waited_seconds",
    ];
    assert_eq!(fields, expected);
}

async fn a_busy_lock_is_75_and_nothing_runs(backend: Backend) {
    let held = backend.die_inside("a", std::time::Duration::from_mins(10)).await;
    let busy = async |options: &[&str]| {
        let mut command = dblock(&backend);
        command
            .args(["run", "-k", "a"])
            .args(options)
            .args(["echo", "inside"]);
        said(&mut command).await
    };
    for (options, code) in [(&[][..], 75), (&["--wait", "5s"], 75), (&["-E", "3"], 3)] {
        let told = busy(options).await;
        assert_eq!((told.code, &*told.out), (Some(code), ""), "{told:?}");
        assert!(
            told.err.contains("busy") && told.err.contains("host/dead"),
            "{told:?}"
        );
    }
    let told = busy(&["--json"]).await.err_json();
    assert_eq!((&told["error"], &told["exit_code"]), (&"busy".into(), &75.into()));
    assert_eq!(backend.the_row("a").await.fence_token, held.fence_token);
}

async fn runs_that_wait_never_overlap(backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    // Only one can make the folder at a time.
    let script = "mkdir inside && sleep 0.05 && rmdir inside && echo x >> count";
    let runs = (0..4).map(|_| {
        let mut command = run(&backend, &[], &["sh", "-c", script]);
        command.current_dir(folder.path()).spawn().unwrap()
    });
    let runs: Vec<_> = runs.collect();
    for child in runs {
        let told = ended(child).await;
        assert_eq!(told.code, Some(0), "{told:?}");
    }
    let count = std::fs::read_to_string(folder.path().join("count")).unwrap();
    assert_eq!(count.lines().count(), 4);
}

async fn limited_commands_run_beside_each_other(backend: Backend) {
    let two = ["--limit", "2"];
    for mistake in [&["--shared", "--limit", "2"][..], &["--limit", "0"]] {
        assert_eq!(said(&mut run(&backend, mistake, &["true"])).await.code, Some(64));
    }
    let locks = backend.manager().await;
    if !locks.capabilities().shares {
        let refused = said(&mut run(&backend, &two, &["true"])).await;
        assert_eq!(refused.code, Some(78), "{refused:?}");
        assert!(refused.err.contains("no shared or limited locks"), "{refused:?}");
        return;
    }
    let waits = "touch begun; while ! [ -e go ]; do sleep 0.02; done";
    let inside = [
        Script::start(&backend, &two, waits),
        Script::start(&backend, &two, waits),
    ];
    for script in &inside {
        script.file("begun").await;
    }
    let listed = said(dblock(&backend).arg("ls")).await;
    assert!(listed.out.contains("2 share it"), "{listed:?}");
    for options in [&two[..], &[]] {
        let mut script = Script::start(&backend, options, "true");
        assert_eq!(script.ended().await.code, Some(75));
    }
    for mut script in inside {
        std::fs::write(script.path("go"), "").unwrap();
        assert_eq!(script.ended().await.code, Some(0));
    }
}

async fn the_unit_of_a_killed_process_comes_back(backend: Backend) {
    a_killed_unit_comes_back(|| dblock(&backend)).await;
}

/// One of two processes inside is killed: nobody renews or releases its unit of the limit.
pub(crate) async fn a_killed_unit_comes_back(dblock: impl Fn() -> Command) {
    let two = ["--limit", "2", "--ttl", "6s"];
    let waits = "touch begun; while ! [ -e go ]; do sleep 0.02; done";
    let start = || Script::start_by(dblock(), &two, waits);
    let mut inside = [start(), start()];
    for script in &inside {
        script.file("begun").await;
    }
    inside[0].signal(Signal::SIGKILL);
    assert_eq!(inside[0].ended().await.code, None);
    for (wait, code) in [(&[][..], 75), (&["--wait", "30s"], 0)] {
        let mut next = Script::start_by(dblock(), &[&two, wait].concat(), "true");
        let told = next.ended().await;
        assert_eq!(told.code, Some(code), "{wait:?}: {told:?}");
    }
    std::fs::write(inside[1].path("go"), "").unwrap();
    assert_eq!(inside[1].ended().await.code, Some(0));
}

async fn hold_min_keeps_the_lock_busy(backend: Backend) {
    let told = said(&mut run(&backend, &["--hold-min", "10m"], &["true"])).await;
    assert_eq!(told.code, Some(0), "{told:?}");
    let row = backend.the_row("a").await;
    assert!(
        !row.is_free() && row.expire_at - row.now > 9 * 60 * 1_000_000,
        "{row:?}"
    );
}

/// The lease is longer, but nobody needs it any more.
async fn hold_min_keeps_the_lock_no_longer_than_it_says(backend: Backend) {
    let told = said(&mut run(
        &backend,
        &["--hold-min", "5s", "--ttl", "10m"],
        &["true"],
    ))
    .await;
    assert_eq!(told.code, Some(0), "{told:?}");
    let row = backend.the_row("a").await;
    assert!(
        !row.is_free() && row.expire_at - row.acquired_at < 8_000_000,
        "{row:?}"
    );
}

/// Left alone they would go on without the lock.
async fn no_process_of_the_command_outlives_the_lock(backend: Backend) {
    for background in ["sleep 1000 &", "(trap '' TERM; while :; do sleep 0.1; done) &"] {
        let script = format!("{background} echo $! > id");
        let mut run = Script::start(&backend, &["--wait", "20s", "--grace", "300ms"], &script);
        let Said { code, err, .. } = run.ended().await;
        let process = run.process("id").await;
        assert_eq!(code, Some(0), "{err}");
        assert!(!is_alive(process), "{background}");
        assert!(backend.the_row("a").await.is_free());
    }
}
