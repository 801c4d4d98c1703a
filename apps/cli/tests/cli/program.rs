//! Running the program.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use dblock_tests::Backend;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// The program, in a bare environment.
pub(crate) fn bare() -> Command {
    // The process that runs the tests may ignore signals, as under `nohup` and a shell's `&`. The program
    // would ignore them then.
    let mut command = Command::new("env");
    command
        .args(["--default-signal", env!("CARGO_BIN_EXE_dblock")])
        .env_remove("DATABASE_URL")
        // On a terminal it would be in the foreground, which changes how Ctrl-C ends it.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

/// The program on the rows of `backend`.
pub(crate) fn dblock(backend: &Backend) -> Command {
    let mut command = bare();
    command
        .env("DATABASE_URL", backend.url().expect("a database"))
        .args(["--table", &backend.table]);
    command
}

/// The output of a program, and its exit code.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The last line of stderr, which is the command's too.
    pub(crate) fn err_json(&self) -> Value {
        let line = self.err.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Waits for the end of the program.
pub(crate) async fn said(command: &mut Command) -> Said {
    ended(command.spawn().unwrap()).await
}

/// Waits for the end of a running program.
pub(crate) async fn ended(child: Child) -> Said {
    let output = child.wait_with_output().await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Said {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// `dblock run --key a …` with a shell script as its command, in a folder of its own.
pub(crate) struct Script {
    pub(crate) folder: TempDir,
    child: Option<Child>,
}

impl Script {
    /// Starts it; `options` are those of `run`.
    pub(crate) fn start(backend: &Backend, options: &[&str], script: &str) -> Self {
        Self::start_by(dblock(backend), options, script)
    }

    /// As [`start`](Self::start), for a command that says which database.
    pub(crate) fn start_by(mut command: Command, options: &[&str], script: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        command.args(["run", "--key", "a"]).args(options);
        command
            .args(["--", "sh", "-c", script])
            .current_dir(folder.path());
        Self {
            child: Some(command.spawn().unwrap()),
            folder,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Waits until the script has made the file `name`, and reads it.
    pub(crate) async fn file(&self, name: &str) -> String {
        let path = self.path(name);
        until(&format!("{name} is there"), || path.exists()).await;
        std::fs::read_to_string(path).unwrap()
    }

    /// Waits until the script has written a process id into the file `name`.
    pub(crate) async fn process(&self, name: &str) -> i32 {
        let path = self.path(name);
        let read = || std::fs::read_to_string(&path).unwrap_or_default().trim().parse();
        until(&format!("{name} has a process id"), || read().is_ok()).await;
        read().unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs");
        kill(Pid::from_raw(id.cast_signed()), signal).unwrap();
    }

    /// The processes that it has started and that are still there.
    pub(crate) fn children(&self) -> Vec<i32> {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs");
        let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        children
            .split_whitespace()
            .filter_map(|child| child.parse().ok())
            .collect()
    }

    /// The next line on its stderr.
    pub(crate) async fn line(&mut self) -> String {
        let child = self.child.as_mut().expect("it runs");
        let mut line = String::new();
        let mut stderr = BufReader::with_capacity(1, child.stderr.as_mut().unwrap());
        stderr.read_line(&mut line).await.unwrap();
        line
    }

    pub(crate) async fn ended(&mut self) -> Said {
        ended(self.child.take().expect("it is waited for once")).await
    }
}

/// Whether a process is there and not just waiting to be reaped by somebody.
pub(crate) fn is_alive(process: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Waits until `done`, for at most half a minute.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let since = Instant::now();
    while !done() {
        assert!(since.elapsed() < Duration::from_secs(30), "still not: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
