//! The runner's side of the worker processes: it starts, kills, stops and ends them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context as _;
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::timeout;

use crate::clocks::{self, Apart};
use crate::history::{Event, Journal};
use crate::once::STALLED;
use crate::process_id::ProcessId;
use crate::settings::Settings;
use crate::target::Target;
use crate::upgrade::Upgrade;

/// How long a process may take to end when it is asked to.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a process may take to reach a step of a run.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);

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
    pub(crate) upgrade: Option<&'a Upgrade<'a>>,
    /// libfaketime, where the clocks of the processes can be set.
    pub(crate) faketime: Option<&'a Path>,
    /// All their clocks run at rates of their own. Otherwise only wall clocks are set.
    pub(crate) apart: Option<Apart>,
    pub(crate) journal: &'a Journal,
}

impl Setup<'_> {
    /// The two programs follow each other in each slot, so that both meet every fault.
    fn program(&self, id: ProcessId) -> anyhow::Result<PathBuf> {
        let is_second = (id.slot + id.generation) % 2 == 1;
        match self.upgrade {
            Some(upgrade) if is_second || !upgrade.has_migrated() => Ok(upgrade.worker()),
            _ => std::env::current_exe().context("the path of this program"),
        }
    }
}

/// The worker processes, one in each slot.
#[derive(Debug)]
pub(crate) struct Processes<'a> {
    setup: Setup<'a>,
    slots: Vec<Mutex<Process>>,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    id: ProcessId,
    pid: u32,
    child: Child,
    /// Closing it asks the process to end.
    stdin: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl<'a> Processes<'a> {
    pub(crate) fn start(setup: Setup<'a>, slots: usize) -> anyhow::Result<Self> {
        let processes = (0..slots).map(|slot| {
            clocks::write(&clock_file(setup.folder, slot), 0.0, 1_000)?;
            start(setup, ProcessId::first(slot)).map(Mutex::new)
        });
        Ok(Self {
            setup,
            slots: processes.collect::<anyhow::Result<_>>()?,
        })
    }

    /// The process in a slot, unless a fault of it is being carried out.
    pub(crate) fn idle(&self, slot: usize) -> Option<MutexGuard<'_, Process>> {
        self.slots[slot].try_lock().ok()
    }

    /// The process in a slot, once no other fault of it is being carried out.
    pub(crate) async fn wait_for(&self, slot: usize) -> MutexGuard<'_, Process> {
        self.slots[slot].lock().await
    }

    /// Kills a process and starts another in its slot.
    pub(crate) async fn replace(&self, process: &mut Process) -> anyhow::Result<()> {
        self.kill(process).await?;
        self.start_next(process)
    }

    /// Kills all processes, and starts others in their slots after `meanwhile`.
    pub(crate) async fn replace_all(
        &self,
        meanwhile: impl Future<Output = anyhow::Result<()>>,
    ) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for slot in &self.slots {
            all.push(slot.lock().await);
        }
        for process in &mut all {
            self.kill(process).await?;
        }
        meanwhile.await?;
        all.iter_mut().try_for_each(|process| self.start_next(process))
    }

    async fn kill(&self, process: &mut Process) -> anyhow::Result<()> {
        let id = process.id;
        let status = process.child.try_wait().context("looking at a worker")?;
        let event = match status.map(|status| status.code()) {
            // Written before the kill, because the process may go on until then.
            None => Event::Killed { process: id },
            Some(code) => Event::Ended { process: id, code },
        };
        self.setup.journal.write(event);
        process.child.kill().await.context("killing a worker")
    }

    fn start_next(&self, process: &mut Process) -> anyhow::Result<()> {
        clocks::forget(process.pid);
        let next = ProcessId {
            generation: process.id.generation + 1,
            ..process.id
        };
        *process = start(self.setup, next)?;
        Ok(())
    }

    /// Kills a process at a place, such as a step of a run, and starts another in its slot. A process that does not reach the
    /// place in time is killed where it is. Returns whether it reached the place.
    pub(crate) async fn replace_stalled(&self, process: &mut Process, place: &str) -> anyhow::Result<bool> {
        let mut stalled = false;
        let command = format!("stall {place}\n");
        if process.send(&command).await.is_ok() {
            let line = timeout(STEP_TIMEOUT, process.output.next_line()).await;
            stalled = matches!(line, Ok(Ok(Some(line))) if line == STALLED);
        }
        self.replace(process).await?;
        Ok(stalled)
    }

    /// Stops a process for so long.
    pub(crate) async fn pause(&self, process: &mut Process, length: Duration) -> anyhow::Result<()> {
        let journal = self.setup.journal;
        journal.write(Event::Paused { process: process.id });
        process.signal(Signal::STOP)?;
        tokio::time::sleep(length).await;
        process.signal(Signal::CONT)?;
        journal.write(Event::Continued { process: process.id });
        Ok(())
    }

    /// Asks all processes to end, and waits until they have ended.
    pub(crate) async fn end(&self) -> anyhow::Result<()> {
        for slot in &self.slots {
            slot.lock().await.stdin = None;
        }
        for slot in &self.slots {
            let mut process = slot.lock().await;
            let id = process.id;
            let Ok(status) = timeout(EXIT_TIMEOUT, process.child.wait()).await else {
                self.setup.journal.write(Event::Stuck { process: id });
                process.child.kill().await.context("killing a worker")?;
                continue;
            };
            let code = status.context("waiting for a worker")?.code();
            self.setup.journal.write(Event::Ended { process: id, code });
        }
        Ok(())
    }

    /// Sets the wall clock of a slot to so many seconds from the true time.
    pub(crate) fn set_clock(&self, slot: usize, to_s: i32) -> anyhow::Result<()> {
        clocks::write(&clock_file(self.setup.folder, slot), to_s.into(), 1_000)
    }
}

impl Process {
    /// Sends a command, a line, to the process.
    pub(crate) async fn send(&mut self, command: &str) -> anyhow::Result<()> {
        let stdin = self.stdin.as_mut().context("the process was asked to end")?;
        let sent = stdin.write_all(command.as_bytes()).await;
        sent.context("sending a command to a worker")
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // Nobody has waited for the child, so the id is not another process' yet.
        let pid = self
            .child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        kill_process(pid.context("the process has ended")?, signal).context("sending a signal")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.start_kill();
        clocks::forget(self.pid);
    }
}

fn start(setup: Setup<'_>, id: ProcessId) -> anyhow::Result<Process> {
    let program = setup.program(id)?;
    let mut command = Command::new(program);
    let settings = Settings::of_slot(id.slot, setup.target.store, setup.hand_over);
    command
        .arg("worker")
        .args(["--url", &setup.target.url_of(id.slot)])
        .arg("--folder")
        .arg(setup.folder)
        .args(["--resource", &setup.resource.to_string()])
        .args(["--slot", &id.slot.to_string()])
        .args(["--generation", &id.generation.to_string()])
        .args(["--tasks", &setup.tasks.to_string()])
        .args(["--seed", &setup.seed.to_string()])
        .args(["--hand-over", &settings.hand_over.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // A terminal's Ctrl-C is for the runner, which ends the others.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(faketime) = setup.faketime {
        command
            .env("LD_PRELOAD", faketime)
            .env("FAKETIME_TIMESTAMP_FILE", clock_file(setup.folder, id.slot))
            .env("FAKETIME_CACHE_DURATION", "1");
        if let Some(apart) = setup.apart {
            let mut rng =
                Rng::with_seed(setup.seed.wrapping_mul(1_000_000) + (id.generation * 100 + id.slot) as u64);
            let rate = apart.rate(&mut rng);
            clocks::write(&clock_file(setup.folder, id.slot), 0.0, rate)?;
            setup.journal.write(Event::Clock {
                process: Some(id),
                rate,
            });
        } else {
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
    }
    let mut child = command.spawn().context("starting a worker")?;
    let pid = child.id().context("a process that was just started has an id")?;
    let output = child.stdout.take().context("its output is piped")?;
    setup.journal.write(Event::Started {
        process: id,
        pid,
        settings,
    });
    Ok(Process {
        output: BufReader::new(output).lines(),
        id,
        pid,
        stdin: child.stdin.take(),
        child,
    })
}

fn clock_file(folder: &Path, slot: usize) -> PathBuf {
    folder.join(format!("clock-{slot}"))
}
