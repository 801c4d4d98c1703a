//! On a terminal: a session of its own on a pseudo-terminal of 40 columns, with bash for what needs a shell
//! with jobs.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dblock::{LockError, OnCrash, RunOptions};
use dblock_tests::{Backend, on_every_store};
use nix::pty::{Winsize, openpty};
use tokio::process::{Child, Command};

use crate::program::until;

on_every_store!(sqlite:
    forty_columns_are_enough,
    that_nothing_is_held_is_told_to_a_person,
    a_question_is_asked_and_its_answer_counts,
    an_answer_is_about_what_was_shown,
    long_waits_are_shown,
    ctrl_c_clears_the_wait,
    a_command_that_reads_gets_the_terminal,
    a_command_stopped_past_its_lease_is_killed,
    ctrl_c_ends_the_calling_script_too,
    a_pipeline_keeps_its_terminal,
);

struct Terminal {
    keyboard: File,
    screen: Arc<Mutex<String>>,
    /// How much of the screen was read.
    seen: usize,
    child: Child,
}

impl Terminal {
    /// Runs `program` as the first of a new session, on the rows of `backend`.
    fn start(backend: &Backend, kind: &str, program: &str, arguments: &[&str]) -> Self {
        Self::start_sized(backend, 24, kind, program, arguments)
    }

    fn start_sized(backend: &Backend, ws_row: u16, kind: &str, program: &str, arguments: &[&str]) -> Self {
        let size = Winsize {
            ws_row,
            ws_col: 40,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        let pair = openpty(Some(&size), None).unwrap();
        let end = || Stdio::from(pair.slave.try_clone().unwrap());
        let child = Command::new("setsid")
            // Where the tests run in the background, a shell has made them ignore the keys that interrupt.
            .args(["--ctty", "env", "--default-signal", program])
            .args(arguments)
            .env("DATABASE_URL", backend.url().unwrap())
            .env(
                "D",
                format!("{} --table {}", env!("CARGO_BIN_EXE_dblock"), backend.table),
            )
            .env("PS1", "ready> ")
            .env("TERM", kind)
            .env_remove("HISTFILE")
            .env_remove("COLUMNS")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let keyboard = File::from(pair.master);
        let mut output = keyboard.try_clone().unwrap();
        let screen = Arc::new(Mutex::new(String::new()));
        let shown = Arc::clone(&screen);
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            while let Ok(count @ 1..) = output.read(&mut bytes) {
                shown
                    .lock()
                    .unwrap()
                    .push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
        });
        Self {
            keyboard,
            screen,
            seen: 0,
            child,
        }
    }

    fn dblock(backend: &Backend, arguments: &[&str]) -> Self {
        let all = [&["--table", &backend.table], arguments].concat();
        Self::start(backend, "xterm", env!("CARGO_BIN_EXE_dblock"), &all)
    }

    async fn bash(backend: &Backend) -> Self {
        let mut bash = Self::start(backend, "dumb", "bash", &["--norc", "--noediting", "-i"]);
        bash.expect("ready> ").await;
        bash
    }

    fn enter(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    /// Waits until `text` is on the screen, after what was waited for before.
    async fn expect(&mut self, text: &str) {
        let screen = Arc::clone(&self.screen);
        let seen = self.seen;
        let find = || screen.lock().unwrap()[seen..].find(text);
        let wait = tokio::time::timeout(Duration::from_secs(20), until(text, || find().is_some()));
        assert!(wait.await.is_ok(), "no {text:?} in {:?}", self.text());
        self.seen += find().unwrap() + text.len();
    }

    async fn code(&mut self) -> Option<i32> {
        self.child.wait().await.unwrap().code()
    }
}

fn widest(terminal: &Terminal) -> usize {
    let text = terminal.text();
    let widths = text.lines().map(|line| line.trim_end().chars().count());
    widths.max().unwrap_or(0)
}

async fn forty_columns_are_enough(backend: Backend) {
    backend
        .die_inside("a-rather-long-key:with-parts:0123456789", Duration::from_mins(10))
        .await;
    for arguments in [&["ls"][..], &["show", "a-rather-long-key:with-parts:0123456789"]] {
        let mut terminal = Terminal::dblock(&backend, arguments);
        terminal.expect("host/dead").await;
        assert_eq!(terminal.code().await, Some(0));
        assert!(widest(&terminal) <= 40, "{}", terminal.text());
    }
    // A terminal that does not know its height, and a user who wants fewer columns.
    let program = env!("CARGO_BIN_EXE_dblock");
    let ls = [program, "--table", &backend.table, "ls"];
    let narrower = [&["COLUMNS=30"][..], &ls].concat();
    for (rows, arguments, columns) in [(0, &ls[..], 40), (24, &narrower, 30)] {
        let mut terminal = Terminal::start_sized(&backend, rows, "xterm", "env", arguments);
        terminal.expect("host/dead").await;
        assert_eq!(terminal.code().await, Some(0));
        assert!(widest(&terminal) <= columns, "{}", terminal.text());
    }
}

async fn that_nothing_is_held_is_told_to_a_person(backend: Backend) {
    for (arguments, told) in [
        (&["ls"][..], "no key is held"),
        (&["ls", "--all"], "no such key"),
        (&["records", "list"], "no such record"),
    ] {
        let mut terminal = Terminal::dblock(&backend, arguments);
        terminal.expect(told).await;
        assert_eq!(terminal.code().await, Some(0));
    }
}

async fn a_question_is_asked_and_its_answer_counts(backend: Backend) {
    backend.die_inside("a", Duration::from_mins(10)).await;
    let mut no = Terminal::dblock(&backend, &["force-release", "a"]);
    no.expect("[y/N]").await;
    no.enter("\n");
    assert_eq!(no.code().await, Some(1), "{}", no.text());
    assert!(!backend.the_row("a").await.is_free());
    let mut yes = Terminal::dblock(&backend, &["force-release", "a"]);
    yes.expect("host/dead").await;
    yes.expect("[y/N]").await;
    yes.enter("y\n");
    assert_eq!(yes.code().await, Some(0), "{}", yes.text());
    assert!(backend.the_row("a").await.is_free());
}

async fn an_answer_is_about_what_was_shown(backend: Backend) {
    let locks = backend.manager().await;
    backend.die_inside("a", Duration::from_mins(10)).await;
    let mut asked = Terminal::dblock(&backend, &["force-release", "a"]);
    asked.expect("[y/N]").await;
    assert!(locks.admin().force_release("a").await.unwrap());
    let guard = locks.lock("a").acquire().await.unwrap();
    asked.enter("y\n");
    asked.expect("nothing was done").await;
    assert_eq!(asked.code().await, Some(1));
    guard.release().await.unwrap();

    let run = || RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let fails = async |_| Err::<u32, _>(LockError::NoManager);
    let pays = async |_| Ok::<_, LockError>(7_u32);
    for command in [&["forget"][..], &["resolve", "--run-again"]] {
        locks.run_once("pay:1", run(), fails).await.unwrap_err();
        let arguments = [&["records"], command, &["pay:1"]].concat();
        let mut asked = Terminal::dblock(&backend, &arguments);
        asked.expect("failed").await;
        asked.expect("[y/N]").await;
        locks.run_once("pay:1", run(), pays).await.unwrap();
        asked.enter("y\n");
        asked.expect("has changed").await;
        assert_eq!(asked.code().await, Some(1));
        let shown = locks.admin().record::<u32>("pay:1").await.unwrap().unwrap();
        assert_eq!(shown.result, Some(7), "{command:?}");
        assert!(locks.admin().forget(&shown.record).await.unwrap());
    }
}

async fn long_waits_are_shown(backend: Backend) {
    backend.die_inside("a", Duration::from_mins(10)).await;
    let mut terminal = Terminal::dblock(&backend, &["run", "-k", "a", "--wait", "1m", "true"]);
    terminal.expect("waiting for lock").await;
    terminal.expect("held by").await;
    backend.manager().await.admin().force_release("a").await.unwrap();
    assert_eq!(terminal.code().await, Some(0), "{}", terminal.text());
}

async fn ctrl_c_clears_the_wait(backend: Backend) {
    backend.die_inside("a", Duration::from_mins(10)).await;
    let mut terminal = Terminal::dblock(&backend, &["run", "-k", "a", "--wait", "1m", "true"]);
    terminal.expect("waiting for lock").await;
    terminal.enter("\x03");
    terminal.code().await;
    let is_cleared = || {
        let text = terminal.text();
        let (_, after) = text.rsplit_once("waiting for lock").unwrap();
        after.contains("\u{1b}[2K")
    };
    until("the line is cleared", is_cleared).await;
}

async fn a_command_that_reads_gets_the_terminal(backend: Backend) {
    let mut bash = Terminal::bash(&backend).await;
    bash.enter("$D run -k a -- sed -u s/^/got:/\n");
    bash.enter("one\n");
    bash.expect("got:one").await;
    bash.enter("\x1a");
    bash.expect("Stopped").await;
    bash.expect("ready> ").await;
    bash.enter("fg\n");
    bash.enter("two\n");
    bash.expect("got:two").await;
    bash.enter("\x03");
    bash.expect("ready> ").await;
    bash.enter("echo code $?\n");
    bash.expect("code 130").await;
    assert!(backend.the_row("a").await.is_free());
}

async fn a_command_stopped_past_its_lease_is_killed(backend: Backend) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("beats");
    let mut bash = Terminal::bash(&backend).await;
    let beat = format!("while :; do echo x >> {}; sleep 0.02; done", file.display());
    bash.enter(&format!("$D run -k a --ttl 4s -- sh -c '{beat}'\n"));
    until("it runs", || file.exists()).await;
    bash.enter("\x1a");
    bash.expect("Stopped").await;
    let beats = || std::fs::metadata(&file).unwrap().len();
    let stopped = beats();
    backend
        .until("a", Duration::from_secs(20), |row| row.expire_at < row.now)
        .await;
    bash.enter("fg\n");
    bash.expect("was lost").await;
    bash.expect("ready> ").await;
    bash.enter("echo code $?\n");
    bash.expect("code 76").await;
    assert_eq!(beats(), stopped, "it did not go on for one step");
}

/// The file for a `tail -f` that says this, and waits. `sh -c 'echo …; sleep 1000'` will not do: dash forgets
/// an interrupt that comes between the two.
fn says_and_waits(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "{text}").unwrap();
    file
}

async fn ctrl_c_ends_the_calling_script_too(backend: Backend) {
    let waits = says_and_waits("got:one");
    for command in ["sed -u s/^/got:/", &format!("tail -f {}", waits.path().display())] {
        let mut bash = Terminal::bash(&backend).await;
        bash.enter(&format!(
            "bash -c \"$D run -k a --wait 9s -- {command}; echo sur''vived\"\n"
        ));
        bash.enter("one\n");
        bash.expect("got:one").await;
        bash.enter("\x03");
        bash.expect("ready> ").await;
        assert!(!bash.text().contains("survived"), "{}", bash.text());
    }
}

/// The reader of the pipeline reads the terminal too, as `less` does.
async fn a_pipeline_keeps_its_terminal(backend: Backend) {
    let mut bash = Terminal::bash(&backend).await;
    let waits = says_and_waits("here");
    bash.enter(&format!(
        "$D run -k a -- tail -f {} | (read x; read y </dev/tty; echo read:$x:$y)\n",
        waits.path().display()
    ));
    bash.enter("typed\n");
    bash.expect("read:here:typed").await;
    bash.enter("\x03");
    bash.expect("ready> ").await;
}
