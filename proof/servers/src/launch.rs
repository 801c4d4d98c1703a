//! Starting one server: a free port, a log, and a bounded wait until it answers.

use std::fmt;
use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::process::{Process, Stop, Target, shown};

/// How long a server may take until it answers. A slow disk can need many seconds for the first start.
const START_LIMIT: Duration = Duration::from_secs(90);

/// How long a server may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(15);

/// How often a server that does not answer yet is asked again.
const ASK_EVERY: Duration = Duration::from_millis(50);

/// How long a server may take to answer a few letters.
const LETTERS_LIMIT: Duration = Duration::from_secs(1);

/// How often another port is tried after somebody else took the first.
const PORT_ATTEMPTS: usize = 5;

/// Out of the range from which connections are given their ports: one of those could have it while a server
/// that was killed is down.
const PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A command for a port.
pub(crate) type OnPort = Box<dyn Fn(u16) -> Command + Send + Sync>;

/// What stands in a server's environment beside what every server gets.
pub(crate) type Variables = [(&'static str, PathBuf)];

/// How a server is started and asked whether it is ready.
pub(crate) struct Launch {
    /// For messages.
    pub(crate) name: String,
    /// Where its output goes.
    pub(crate) log: PathBuf,
    /// The signal that makes it end quickly and cleanly.
    pub(crate) stop: Signal,
    pub(crate) server: OnPort,
    pub(crate) probe: Probe,
}

/// How a server shows that it is ready.
pub(crate) enum Probe {
    /// A client succeeds: with the password of this server, so that a stranger on the port is not taken for
    /// it.
    Client(OnPort),
    /// It takes connections.
    Connects,
    /// It answers these letters with a text that has this in it.
    Says(&'static str, &'static str),
    /// As [`Says`](Self::Says), on another port, because its own speaks TLS.
    SaysOn(u16, &'static str, &'static str),
}

/// Why a server does not run.
enum Failure {
    /// It ended before it was ready.
    Ended(ExitStatus),
    Other(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

impl Launch {
    /// Starts the server on a free port and waits until it answers.
    pub(crate) async fn run(&self) -> anyhow::Result<(Process, u16)> {
        for _ in 1..PORT_ATTEMPTS {
            let port = free_port()?;
            match self.try_on(port, &[]).await {
                Ok(process) => return Ok((process, port)),
                // Between our look and the server's start somebody may take the port.
                // Its next start begins a log of its own.
                Err(_) if log_of(&self.log).contains("Address already in use") => fs::remove_file(&self.log)?,
                Err(failure) => return Err(self.explain(failure)),
            }
        }
        let port = free_port()?;
        let process = self
            .try_on(port, &[])
            .await
            .map_err(|failure| self.explain(failure))?;
        Ok((process, port))
    }

    /// Starts the server again after it was killed. PostgreSQL refuses while a child of its former self still
    /// has the shared memory, so one that ends is started anew.
    pub(crate) async fn run_again(&self, port: u16, variables: &Variables) -> anyhow::Result<Process> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            match self.try_on(port, variables).await {
                Ok(process) => return Ok(process),
                Err(Failure::Ended(_)) if Instant::now() < deadline => sleep(ASK_EVERY).await,
                Err(failure) => return Err(self.explain(failure)),
            }
        }
    }

    /// Its output follows that of the starts before.
    async fn try_on(&self, port: u16, variables: &Variables) -> Result<Process, Failure> {
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.with_context(|| format!("cannot write {}", self.log.display()))?;
        let mut command = (self.server)(port);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.stderr(log.try_clone()?).stdout(log);
        let stop = Stop {
            signal: self.stop,
            to: Target::Process,
            grace: STOP_LIMIT,
        };
        self.ready(Process::start(&mut command, stop)?, port).await
    }

    /// Waits until a server that runs answers. `None`: it has ended.
    pub(crate) async fn wait_until_ready(
        &self,
        process: Process,
        port: u16,
    ) -> anyhow::Result<Option<Process>> {
        match self.ready(process, port).await {
            Ok(process) => Ok(Some(process)),
            Err(Failure::Ended(_)) => Ok(None),
            Err(failure) => Err(self.explain(failure)),
        }
    }

    async fn ready(&self, mut process: Process, port: u16) -> Result<Process, Failure> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let answer = timeout_at(deadline, self.probe.ask(port)).await;
            if let Some(status) = process.ended()? {
                return Err(Failure::Ended(status));
            }
            let said = match answer {
                Ok(Ok(())) => return Ok(process),
                Ok(Err(said)) => said,
                Err(_) => "no answer".to_owned(),
            };
            if Instant::now() + ASK_EVERY >= deadline {
                let error = anyhow::anyhow!("{} is not ready after {START_LIMIT:?} ({said})", self.name);
                return Err(Failure::Other(error));
            }
            sleep(ASK_EVERY).await;
        }
    }

    fn explain(&self, failure: Failure) -> anyhow::Error {
        let error = match failure {
            Failure::Ended(status) => anyhow::anyhow!("{} ended at its start with {status}", self.name),
            Failure::Other(error) => error,
        };
        let log = match tail(&log_of(&self.log), 20) {
            "" => "its log is empty".to_owned(),
            lines => format!("the end of its log:\n{lines}"),
        };
        anyhow::anyhow!("{error:#}; {log}")
    }
}

impl Probe {
    /// Whether the server on `port` is ready; else what it, or its client, said.
    async fn ask(&self, port: u16) -> Result<(), String> {
        match self {
            Self::Connects => {
                let connected = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
                connected.map(drop).map_err(|error| error.to_string())
            }
            Self::Says(letters, sign) => says(port, letters, sign).await,
            Self::SaysOn(other, letters, sign) => says(*other, letters, sign).await,
            Self::Client(client) => {
                let mut client = client(port);
                match client.output().await {
                    Ok(output) if output.status.success() => Ok(()),
                    Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
                    Err(error) => Err(format!("cannot run `{}`: {error}", shown(&client))),
                }
            }
        }
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("name", &self.name)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

async fn says(port: u16, letters: &str, sign: &str) -> Result<(), String> {
    match ask_letters(port, letters).await {
        Ok(said) if said.contains(sign) => Ok(()),
        Ok(said) => Err(said.trim().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// The answer of the server on `port` to a few letters, such as ZooKeeper gives. A server that is starting
/// may never answer, and one that is stopped does not.
pub(crate) async fn ask_letters(port: u16, letters: &str) -> std::io::Result<String> {
    let answer = async {
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        connection.write_all(letters.as_bytes()).await?;
        let mut said = String::new();
        connection.read_to_string(&mut said).await?;
        Ok(said)
    };
    timeout(LETTERS_LIMIT, answer).await?
}

/// Runs a program that prepares a server's files, to its end.
pub(crate) async fn prepare(mut command: Command) -> anyhow::Result<()> {
    let ended = timeout(START_LIMIT, command.kill_on_drop(true).output()).await;
    let Ok(output) = ended else {
        bail!("`{}` has not ended after {START_LIMIT:?}", shown(&command));
    };
    let output = output.with_context(|| format!("cannot run `{}`", shown(&command)))?;
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
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(PORTS))
        .take(PORTS.len())
        .find(free)
        .context("no free port on 127.0.0.1")
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

    fn sample(
        folder: &Path,
        server: impl Fn(u16) -> Command + Send + Sync + 'static,
        probe: impl Fn(u16) -> Command + Send + Sync + 'static,
    ) -> Launch {
        Launch {
            name: "Sample".to_owned(),
            log: folder.join("log"),
            stop: Signal::TERM,
            server: Box::new(server),
            probe: Probe::Client(Box::new(probe)),
        }
    }

    #[tokio::test]
    async fn a_server_that_dies_is_reported_with_its_log() {
        let folder = tempfile::tempdir().unwrap();
        let dies = |_| shell("echo the disk is full >&2; exit 3".to_owned());
        let launch = sample(folder.path(), dies, |_| shell("exit 1".to_owned()));
        let error = launch.run().await.unwrap_err().to_string();
        assert!(
            error.starts_with("Sample ended at its start with exit status: 3"),
            "{error}"
        );
        assert!(error.ends_with("the disk is full"), "{error}");
    }

    /// A server that ends at its first start, with `reason`, and stays at its second.
    fn second_time_lucky(folder: &Path, reason: &'static str) -> Launch {
        let top = folder.to_owned();
        let server = move |_| {
            let script = format!("mkdir taken 2>/dev/null && {{ echo {reason}; exit 1; }}; exec sleep 100");
            let mut command = shell(script);
            command.current_dir(&top);
            command
        };
        let taken = folder.join("taken");
        // Ready when the second start is under way; a failure lets the first one end.
        let probe = move |_| shell(format!("test -d {0} && sleep 0.1", taken.display()));
        sample(folder, server, probe)
    }

    #[tokio::test(start_paused = true)]
    async fn a_preparation_that_does_not_end_is_told() {
        let error = prepare(shell("exec sleep 1000".to_owned())).await.unwrap_err();
        assert!(error.to_string().contains("has not ended after 90s"), "{error}");
    }

    #[tokio::test]
    async fn another_port_is_tried_when_the_first_was_taken() {
        let folder = tempfile::tempdir().unwrap();
        let launch = second_time_lucky(folder.path(), "Address already in use");
        let (mut process, port) = launch.run().await.unwrap();
        assert_ne!(port, 0);
        assert!(process.ended().unwrap().is_none());
    }

    #[tokio::test]
    async fn a_killed_server_that_does_not_start_at_once_is_started_again() {
        let folder = tempfile::tempdir().unwrap();
        let launch = second_time_lucky(folder.path(), "the shared memory is in use");
        let mut process = launch.run_again(1, &[]).await.unwrap();
        assert!(process.ended().unwrap().is_none());
    }
}
