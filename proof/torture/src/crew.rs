//! The processes: starting them, killing and stopping them, sending them home.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::history::{Event, Journal};
use crate::once::{STALLED, Step};
use crate::seat::Life;
use crate::settings::Settings;
use crate::target::Target;

/// How long a process may take to drop what it does and go.
const FAREWELL: Duration = Duration::from_secs(20);

/// How long it may take until a process comes to a step of a run.
const RUNS_WITHIN: Duration = Duration::from_secs(8);

/// Where Debian keeps libfaketime, which gives a process a wall clock of its own.
const FAKETIME: &str = "/usr/lib/*/faketime/libfaketime.so.1";

/// The arguments of every process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) target: &'a Target,
    pub(crate) folder: &'a Path,
    pub(crate) resource: SocketAddr,
    pub(crate) tasks: u64,
    pub(crate) seed: u64,
    /// Some processes may hand locks from task to task without the database in between.
    pub(crate) hand_over: bool,
    /// libfaketime, where the clocks of the processes can be set.
    pub(crate) faketime: Option<&'a Path>,
    pub(crate) journal: &'a Journal,
}

/// The seats and who has them.
#[derive(Debug)]
pub(crate) struct Crew<'a> {
    setup: Setup<'a>,
    seats: Vec<Mutex<Member>>,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Member {
    life: Life,
    pid: u32,
    process: Child,
    /// Closing it asks the process to end.
    stdin: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl<'a> Crew<'a> {
    pub(crate) fn start(setup: Setup<'a>, seats: usize) -> anyhow::Result<Self> {
        let members = (0..seats).map(|seat| {
            set_clock(setup.folder, seat, 0)?;
            hire(setup, Life { seat, life: 0 }).map(Mutex::new)
        });
        Ok(Self {
            setup,
            seats: members.collect::<anyhow::Result<_>>()?,
        })
    }

    /// The process in a seat, unless something is being done to it.
    pub(crate) fn idle(&self, seat: usize) -> Option<MutexGuard<'_, Member>> {
        self.seats[seat].try_lock().ok()
    }

    /// The process in a seat, once nothing is being done to it any more.
    pub(crate) async fn wait_for(&self, seat: usize) -> MutexGuard<'_, Member> {
        self.seats[seat].lock().await
    }

    /// Kills a process and starts another in its seat.
    pub(crate) async fn replace(&self, member: &mut Member) -> anyhow::Result<()> {
        let life = member.life;
        match member.process.try_wait().context("looking at a worker")? {
            // Before it dies: it may go on until then.
            None => self.setup.journal.write(Event::Killed { life }),
            Some(status) => self.setup.journal.write(Event::Ended {
                life,
                code: status.code(),
            }),
        };
        member.process.kill().await.context("killing a worker")?;
        member.forget_clock();
        let next = Life {
            life: member.life.life + 1,
            ..member.life
        };
        *member = hire(self.setup, next)?;
        Ok(())
    }

    /// Kills a process at a step of a run, and starts another in its seat. If it does not come so far in
    /// time, it is killed where it is, which is not what was wanted.
    pub(crate) async fn replace_at(&self, member: &mut Member, step: Step) -> anyhow::Result<bool> {
        let mut stalled = false;
        if member.order(&format!("stall {}\n", step.name())).await.is_ok() {
            let line = timeout(RUNS_WITHIN, member.output.next_line()).await;
            stalled = matches!(line, Ok(Ok(Some(line))) if line == STALLED);
        }
        self.replace(member).await?;
        Ok(stalled)
    }

    /// Stops a process for so long.
    pub(crate) async fn pause(&self, member: &mut Member, length: Duration) -> anyhow::Result<()> {
        let journal = self.setup.journal;
        journal.write(Event::Paused { life: member.life });
        member.signal(Signal::STOP)?;
        tokio::time::sleep(length).await;
        member.signal(Signal::CONT)?;
        journal.write(Event::Continued { life: member.life });
        Ok(())
    }

    /// Asks everyone to end and waits for that. Returns when nobody is left.
    pub(crate) async fn dismiss(&self) -> anyhow::Result<()> {
        for seat in &self.seats {
            seat.lock().await.stdin = None;
        }
        for seat in &self.seats {
            let mut member = seat.lock().await;
            let life = member.life;
            let Ok(status) = timeout(FAREWELL, member.process.wait()).await else {
                self.setup.journal.write(Event::Stuck { life });
                member.process.kill().await.context("killing a worker")?;
                continue;
            };
            let code = status.context("waiting for a worker")?.code();
            self.setup.journal.write(Event::Ended { life, code });
        }
        Ok(())
    }

    /// Sets the wall clock of a seat, to so many seconds from the true time.
    pub(crate) fn set_clock(&self, seat: usize, to_s: i32) -> anyhow::Result<()> {
        set_clock(self.setup.folder, seat, to_s)
    }
}

impl Member {
    pub(crate) async fn order(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the process was dismissed")?;
        stdin.write_all(line.as_bytes()).await.context("telling a worker")
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // It has not been waited for, so the id is its own.
        let pid = self
            .process
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        kill_process(pid.context("the process has ended")?, signal).context("sending a signal")
    }

    /// Libfaketime leaves this behind of a process that was killed.
    fn forget_clock(&self) {
        let pid = self.pid;
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.start_kill();
        self.forget_clock();
    }
}

fn hire(setup: Setup<'_>, life: Life) -> anyhow::Result<Member> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    let settings = Settings::of_seat(life.seat, setup.target.store, setup.hand_over);
    command
        .arg("worker")
        .args(["--url", &setup.target.url_of(life.seat)])
        .arg("--folder")
        .arg(setup.folder)
        .args(["--resource", &setup.resource.to_string()])
        .args(["--seat", &life.seat.to_string(), "--life", &life.life.to_string()])
        .args([
            "--tasks",
            &setup.tasks.to_string(),
            "--seed",
            &setup.seed.to_string(),
        ])
        .args(["--hand-over", &settings.hand_over.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A terminal's Ctrl-C is for the runner, which ends the others.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(faketime) = setup.faketime {
        command
            .env("LD_PRELOAD", faketime)
            .env("FAKETIME_TIMESTAMP_FILE", clock_file(setup.folder, life.seat))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_CACHE_DURATION", "1");
    }
    let mut process = command.spawn().context("starting a worker")?;
    let pid = process
        .id()
        .context("a process that was just started has an id")?;
    let output = process.stdout.take().context("its output is piped")?;
    setup.journal.write(Event::Started { life, pid, settings });
    Ok(Member {
        output: BufReader::new(output).lines(),
        life,
        pid,
        stdin: process.stdin.take(),
        process,
    })
}

fn clock_file(folder: &Path, seat: usize) -> PathBuf {
    folder.join(format!("clock-{seat}"))
}

fn set_clock(folder: &Path, seat: usize, to_s: i32) -> anyhow::Result<()> {
    // Never half a file.
    let (file, draft) = (clock_file(folder, seat), folder.join(format!("clock-{seat}.new")));
    std::fs::write(&draft, format!("{to_s:+}\n"))?;
    std::fs::rename(draft, file).context("setting a clock")
}

/// libfaketime, where it is installed.
pub(crate) fn faketime() -> Option<PathBuf> {
    let (before, after) = FAKETIME.split_once("/*/")?;
    let folders = std::fs::read_dir(before).ok()?.flatten();
    folders
        .map(|folder| folder.path().join(after))
        .find(|library| library.is_file())
}
