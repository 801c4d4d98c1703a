//! Processes of one program: it starts itself again, and all of them end when the first one does.

use std::io::Read as _;
use std::process::Stdio;

use anyhow::Context as _;
use tokio::process::{Child, ChildStdin, Command};

/// This program, started again. Dropping it kills that process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) child: Child,
    /// Never written to: it closes when we end, and the process sees that. `wait` would close it sooner.
    _lifeline: Option<ChildStdin>,
}

/// Starts this program again with other arguments. `prepare` may change the command.
pub(crate) fn start(arguments: &[String], prepare: impl FnOnce(&mut Command)) -> anyhow::Result<Process> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C on the terminal is for the parent, which then ends the others.
    #[cfg(unix)]
    command.process_group(0);
    prepare(&mut command);
    let mut child = command
        .spawn()
        .with_context(|| format!("cannot start {}", arguments.join(" ")))?;
    Ok(Process {
        _lifeline: child.stdin.take(),
        child,
    })
}

/// Ends this process when the parent is gone, however that ended: its end of our standard input closes.
pub(crate) fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
}

/// Completes when somebody asks this program to end.
pub(crate) async fn stop_signal() -> anyhow::Result<()> {
    let stop = dblock_examples::stop::signal().await;
    stop.context("cannot listen for signals")
}
