//! This program as a second process: what it does there, and how the first one starts and leads it.
//!
//! They speak in lines. A worker ends when its input ends, so it never outlives who started it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::load::{Keys, Load, Seen};
use crate::subject::{Kind, Use};

/// The URL goes through the environment: the arguments of a process are for everyone to read.
const URL: &str = "DBLOCK_BENCH_WORKER_URL";

/// The work of a worker.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    subject: Kind,
    key: String,
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Clone, clap::Subcommand)]
pub(crate) enum Work {
    /// Tasks that lock and unlock the key for a while, once told to go.
    Load {
        tasks: usize,
        warm_ms: u64,
        time_ms: u64,
    },
    /// One task that waits for the key when told to, and says when it is inside.
    Wait,
}

/// The answer of a worker at the end of its load.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) waits: Vec<u64>,
    pub(crate) entries: Vec<u64>,
    /// ns.
    pub(crate) longest: u64,
}

type Input = Lines<BufReader<tokio::io::Stdin>>;

/// The second process.
pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let url = std::env::var(URL).with_context(|| format!("{URL} is not set"))?;
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let tasks = match args.work {
        Work::Load { tasks, .. } => tasks,
        Work::Wait => 1,
    };
    let subject = args.subject.open_at(&url, Use::contended(tasks)).await?;
    say("ready");
    match args.work {
        Work::Load {
            tasks,
            warm_ms,
            time_ms,
        } => {
            expect(&mut input, "go").await?;
            let load = Load {
                tasks,
                keys: Keys::One(&args.key),
                warm: Duration::from_millis(warm_ms),
                time: Duration::from_millis(time_ms),
            };
            let seen = tokio::select! {
                seen = load.run(&*subject) => seen?,
                line = input.next_line() => bail!("told {line:?} in the middle of the work"),
            };
            let Seen {
                waits,
                entries,
                longest,
                ..
            } = seen;
            say(&serde_json::to_string(&Report {
                waits,
                entries,
                longest,
            })?);
        }
        Work::Wait => {
            let mut client = subject.client(&args.key);
            while let Some(line) = input.next_line().await? {
                ensure!(line == "lock", "told {line:?}");
                say("asking");
                client.lock().await?;
                let inside = clock();
                client.unlock().await?;
                say(&inside.to_string());
            }
            return Ok(());
        }
    }
    subject.close().await
}

async fn expect(input: &mut Input, word: &str) -> anyhow::Result<()> {
    let line = input.next_line().await?;
    ensure!(line.as_deref() == Some(word), "told {line:?} instead of {word:?}");
    Ok(())
}

fn say(line: &str) {
    println!("{line}");
}

/// ns on a clock that all processes of a machine share.
pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// A worker as seen by the first process. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Starts this program once more, and returns when it is connected.
    pub(crate) async fn start(kind: Kind, url: &str, key: &str, work: Work) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        let name = clap::ValueEnum::to_possible_value(&kind).context("every kind has a name")?;
        command.args(["worker", name.get_name(), key]);
        match work {
            Work::Load {
                tasks,
                warm_ms,
                time_ms,
            } => command
                .arg("load")
                .args([tasks.to_string(), warm_ms.to_string(), time_ms.to_string()]),
            Work::Wait => command.arg("wait"),
        };
        command
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().context("cannot start a worker")?;
        let input = child.stdin.take().context("piped")?;
        let output = BufReader::new(child.stdout.take().context("piped")?).lines();
        let mut worker = Self { child, input, output };
        let line = worker.hear().await?;
        ensure!(line == "ready", "a worker says {line:?}");
        Ok(worker)
    }

    pub(crate) async fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        Ok(self.input.write_all(format!("{line}\n").as_bytes()).await?)
    }

    pub(crate) async fn hear(&mut self) -> anyhow::Result<String> {
        self.output.next_line().await?.context("a worker ended early")
    }

    /// Ends it in the middle of its work.
    pub(crate) async fn kill(&mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Lets it end by itself.
    pub(crate) async fn end(self) -> anyhow::Result<()> {
        let Self {
            mut child,
            input,
            output,
        } = self;
        drop(input);
        let status = child.wait().await?;
        drop(output);
        ensure!(status.success(), "a worker ended with {status}");
        Ok(())
    }
}
