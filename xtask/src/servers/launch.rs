//! Starting one server: a free port, a log, and a bounded wait until it answers.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout_at};

use crate::process::{Process, Stop, Target, shown};

/// How long a server may take until it answers. A slow disk can need many seconds for the first start.
const START_LIMIT: Duration = Duration::from_secs(90);

/// How long a server may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How often a server that does not answer yet is asked again.
const ASK_EVERY: Duration = Duration::from_millis(100);

/// How often another port is tried after somebody else took the first.
const PORT_ATTEMPTS: usize = 5;

/// How a server is started and asked whether it is ready.
pub(crate) struct Launch<'a> {
    /// For messages.
    pub(crate) name: &'a str,
    /// Where its output goes.
    pub(crate) log: &'a Path,
    /// The signal that makes it end quickly and cleanly.
    pub(crate) stop: Signal,
    /// The server on a port.
    pub(crate) server: &'a dyn Fn(u16) -> Command,
    /// A client that succeeds once the server on that port takes statements, with the password of this
    /// server, so that a stranger on the port is not taken for it.
    pub(crate) probe: &'a dyn Fn(u16) -> Command,
}

impl Launch<'_> {
    /// Starts the server on a free port and waits until it answers.
    pub(crate) async fn run(&self) -> anyhow::Result<(Process, u16)> {
        for _ in 1..PORT_ATTEMPTS {
            let port = free_port()?;
            match self.run_on(port).await {
                Ok(process) => return Ok((process, port)),
                // Between our look and the server's start somebody may take the port.
                Err(_) if log_of(self.log).contains("Address already in use") => {}
                Err(error) => return Err(error),
            }
        }
        let port = free_port()?;
        Ok((self.run_on(port).await?, port))
    }

    async fn run_on(&self, port: u16) -> anyhow::Result<Process> {
        let log = File::create(self.log).with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = (self.server)(port);
        command.stderr(log.try_clone()?).stdout(log);
        let stop = Stop {
            signal: self.stop,
            to: Target::Process,
            grace: STOP_LIMIT,
        };
        let mut process = Process::start(&mut command, stop)?;

        let deadline = Instant::now() + START_LIMIT;
        loop {
            let mut probe = (self.probe)(port);
            let answer = timeout_at(deadline, probe.output()).await;
            if let Some(status) = process.ended()? {
                bail!(
                    "{} ended at its start with {status}; {}",
                    self.name,
                    self.log_tail()
                );
            }
            let said = match answer {
                Ok(Ok(output)) if output.status.success() => return Ok(process),
                Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                Ok(Err(error)) => bail!("cannot run `{}`: {error}", shown(&probe)),
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + ASK_EVERY >= deadline {
                let name = self.name;
                bail!(
                    "{name} is not ready after {START_LIMIT:?} ({said}); {}",
                    self.log_tail()
                );
            }
            sleep(ASK_EVERY).await;
        }
    }

    fn log_tail(&self) -> String {
        match tail(&log_of(self.log), 20) {
            "" => "its log is empty".to_owned(),
            lines => format!("the end of its log:\n{lines}"),
        }
    }
}

/// Runs a program that prepares a server's files, to its end.
pub(crate) async fn prepare(mut command: Command) -> anyhow::Result<()> {
    let output = command
        .output()
        .await
        .with_context(|| format!("cannot run `{}`", shown(&command)))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        bail!(
            "`{}` failed with {}:\n{}",
            shown(&command),
            output.status,
            tail(&said, 20)
        );
    }
    Ok(())
}

/// A port of the loopback that nobody listens on at this moment.
fn free_port() -> anyhow::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?.port())
}

fn log_of(path: &Path) -> String {
    fs::read(path)
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .unwrap_or_default()
}

/// The last `count` lines of `text`.
fn tail(text: &str, count: usize) -> &str {
    let text = text.trim_end();
    let start = text
        .rmatch_indices('\n')
        .nth(count - 1)
        .map_or(0, |(index, _)| index + 1);
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free_port().unwrap();
        assert_ne!(port, 0);
        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }

    #[test]
    fn tail_is_the_last_lines() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\nb\n", 2), "a\nb");
        assert_eq!(tail("a", 2), "a");
        assert_eq!(tail("", 2), "");
    }

    fn shell(script: String) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[tokio::test]
    async fn a_server_that_dies_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let launch = Launch {
            name: "Sample",
            log: &folder.path().join("log"),
            stop: Signal::TERM,
            server: &|_| shell("echo the disk is full >&2; exit 3".to_owned()),
            probe: &|_| shell("exit 1".to_owned()),
        };
        let error = launch.run().await.unwrap_err().to_string();
        assert!(
            error.starts_with("Sample ended at its start with exit status: 3"),
            "{error}"
        );
        assert!(error.ends_with("the disk is full"), "{error}");
    }

    #[tokio::test]
    async fn another_port_is_tried_when_the_first_was_taken() {
        let folder = tempfile::tempdir().unwrap();
        let taken = folder.path().join("taken");
        let launch = Launch {
            name: "Sample",
            log: &folder.path().join("log"),
            stop: Signal::TERM,
            server: &|_| {
                let script =
                    "mkdir taken 2>/dev/null && { echo Address already in use; exit 1; }; exec sleep 100";
                let mut command = shell(script.to_owned());
                command.current_dir(folder.path());
                command
            },
            // Ready when the second start is under way; a failure lets the first one end.
            probe: &|_| shell(format!("test -d {0} && sleep 0.1", taken.display())),
        };
        let (mut process, port) = launch.run().await.unwrap();
        assert_ne!(port, 0);
        assert!(process.ended().unwrap().is_none());
    }
}
