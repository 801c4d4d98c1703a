//! Another process that takes a lock and ends in some way. Its program is `bin/holder.rs`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::Backend;

/// A running `holder`.
#[derive(Debug)]
pub struct Holder {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Holder {
    /// Starts `program` (`env!("CARGO_BIN_EXE_holder")`) on the rows of `backend`.
    ///
    /// # Panics
    /// For memory, which other processes cannot see.
    pub fn start(program: &str, backend: &Backend, key: &str, ending: &str) -> Self {
        let url = backend.url().expect("memory belongs to one process");
        let mut child = Command::new(program)
            .args([ending, &url, &backend.table, key])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Waits for the line with which the child says that it is inside.
    pub fn wait_until_inside(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "inside");
    }

    /// Ends the process with SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the process to end by itself. Its exit code.
    pub fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}
