//! Signals to `dblock run`, and its own death.

use dblock_tests::{Backend, on_every_store};
use nix::sys::signal::Signal;
use tokio::process::Command;

use crate::program::{Script, dblock, ended, is_alive, until};

on_every_store!(databases:
    a_signal_ends_the_wait,
    signals_are_handed_on,
    a_killed_run_takes_its_processes_along,
    a_run_that_is_killed_while_it_starts_leaves_nothing_behind,
);
on_every_store!(sqlite: what_was_ignored_stays_ignored, the_watchdog_has_a_name);

async fn a_signal_ends_the_wait(backend: Backend) {
    let held = backend.die_inside("a", std::time::Duration::from_mins(10)).await;
    let locks = backend.manager().await;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        let mut run = Script::start(&backend, &["--wait", "forever"], "touch inside");
        // The row says that it waits.
        let mut next = locks.admin().get("a").await.unwrap().and_then(|row| row.next);
        while next.is_none() {
            next = locks.admin().get("a").await.unwrap().and_then(|row| row.next);
        }
        run.signal(signal);
        let told = run.ended().await;
        assert_eq!(told.code, Some(128 + signal as i32), "{told:?}");
        assert!(!run.path("inside").exists());
        // It does not wait any more, as the row says.
        let shown = crate::program::said(dblock(&backend).args(["show", "a", "--json"]))
            .await
            .json();
        assert!(shown["next"].is_null(), "{shown}");
    }
    assert_eq!(backend.the_row("a").await.fence_token, held.fence_token);
}

async fn signals_are_handed_on(backend: Backend) {
    for (name, signal) in [
        ("TERM", Signal::SIGTERM),
        ("INT", Signal::SIGINT),
        ("HUP", Signal::SIGHUP),
        ("QUIT", Signal::SIGQUIT),
        ("USR1", Signal::SIGUSR1),
        ("USR2", Signal::SIGUSR2),
    ] {
        let script = format!("trap 'exit 9' {name}; touch ready; while :; do sleep 0.02; done");
        let mut run = Script::start(&backend, &["--wait", "20s"], &script);
        run.file("ready").await;
        run.signal(signal);
        let told = run.ended().await;
        assert_eq!(told.code, Some(9), "{name}: {told:?}");
        assert!(backend.the_row("a").await.is_free());
    }
    // A command that does not handle it ends by it.
    let mut run = Script::start(&backend, &["--wait", "20s"], "touch ready; sleep 1000");
    run.file("ready").await;
    run.signal(Signal::SIGTERM);
    assert_eq!(run.ended().await.code, Some(143));
}

/// The lease goes on until its ttl is over; who then has the lock is alone.
async fn a_killed_run_takes_its_processes_along(backend: Backend) {
    let script = "trap '' TERM; (while :; do sleep 0.1; done) & echo $! > grandchild; echo $$ > child; \
                  while :; do wait; done";
    let mut run = Script::start(&backend, &["--ttl", "10m"], script);
    let processes = [run.process("child").await, run.process("grandchild").await];
    run.signal(Signal::SIGKILL);
    until("all are gone", || {
        !processes.iter().any(|process| is_alive(*process))
    })
    .await;
    run.ended().await;
    assert!(!backend.the_row("a").await.is_free());
}

/// The watchdog knows the group before the command begins. There is no instant between the two.
async fn a_run_that_is_killed_while_it_starts_leaves_nothing_behind(backend: Backend) {
    for _ in 0..5 {
        let mut run = Script::start(&backend, &["--ttl", "1s", "--wait", "20s"], "sleep 1000");
        // The first child is the watchdog. The other one is the command, or is about to become it.
        let children = loop {
            let children = run.children();
            if children.len() > 1 {
                break children;
            }
        };
        run.signal(Signal::SIGKILL);
        until("all are gone", || !children.iter().any(|child| is_alive(*child))).await;
        run.ended().await;
    }
}

/// `top` and `pgrep` show the name of a process, and not its arguments.
async fn the_watchdog_has_a_name(backend: Backend) {
    let mut run = Script::start(&backend, &[], "touch ready; sleep 1000");
    run.file("ready").await;
    let names = || {
        let name = |child| std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        run.children().into_iter().map(name).collect::<Vec<_>>()
    };
    until("it has its name", || {
        names().contains(&"dblock-watchdog\n".to_owned())
    })
    .await;
    assert!(!names().contains(&"exe\n".to_owned()), "{:?}", names());
    run.signal(Signal::SIGTERM);
    run.ended().await;
}

/// As `nohup dblock run …` has it.
async fn what_was_ignored_stays_ignored(backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap '' HUP; exec \"$0\" --table \"$1\" run -k a -- sh -c 'touch ready; while ! [ -e go ]; do sleep 0.02; done; exit 5'";
    let child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_dblock"), &backend.table])
        .env("DATABASE_URL", backend.url().unwrap())
        .current_dir(folder.path())
        .spawn()
        .unwrap();
    until("it runs", || folder.path().join("ready").exists()).await;
    let id = nix::unistd::Pid::from_raw(child.id().unwrap().cast_signed());
    nix::sys::signal::kill(id, Signal::SIGHUP).unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(ended(child).await.code, Some(5));
}
