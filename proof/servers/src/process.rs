//! Child processes that do not outlive the task.

use std::process::{ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

/// How often a stopping process is looked at. Dropping cannot await, so it has to look.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// No killed process takes this long to go, unless the system hangs.
const KILLED: Duration = Duration::from_secs(5);

/// How a process is asked to end.
#[derive(Debug, Clone, Copy)]
pub struct Stop {
    /// The signal that asks.
    pub signal: Signal,
    /// Its receiver.
    pub to: Target,
    /// How long the process may take before it is killed.
    pub grace: Duration,
}

/// The receiver of the signal that asks a process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The process alone; it ends its own children.
    Process,
    /// Its whole process group.
    Group,
}

/// A running child in a process group of its own, stopped when dropped.
///
/// The group keeps a terminal's Ctrl-C away from the child: it reaches us first, and we end the child in
/// its own way.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    stop: Stop,
}

impl Process {
    /// Starts it, with nothing on its stdin.
    ///
    /// # Errors
    /// The program cannot be run.
    pub fn start(command: &mut Command, stop: Stop) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run `{}`", shown(command)))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .context("a process that was just started has an id")?;
        Ok(Self { child, pid, stop })
    }

    /// Its number, unless its end was seen.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for the end of the process.
    ///
    /// # Errors
    /// The system refuses.
    pub async fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.wait().await.context("cannot wait for a child process")
    }

    /// How the process ended, if it has.
    ///
    /// # Errors
    /// The system refuses.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child.try_wait().context("cannot look at a child process")
    }

    /// `kill -9`: nothing is written any more, nobody is told.
    pub fn kill(mut self) {
        self.kill_children();
        let _ = self.child.start_kill();
        self.ends_within(KILLED);
    }

    /// The sessions of PostgreSQL are processes of their own, which would go on for a moment.
    fn kill_children(&self) {
        // Stopped, it starts no more of them.
        let _ = self.send(Signal::STOP);
        for child in children(self.pid) {
            // It may have ended meanwhile.
            let _ = kill_process(child, Signal::KILL);
        }
    }

    /// Sends `signal`, then waits for the end for so long as dropping would.
    pub fn stop_by(mut self, signal: Signal) {
        self.stop.signal = signal;
    }

    /// Sends `signal` to the process alone.
    ///
    /// # Errors
    /// The system refuses.
    pub fn send(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.pid, signal)
            .with_context(|| format!("cannot send {signal:?} to process {}", self.pid))
    }

    /// Sends `signal` to it and to the processes that it has started, as the sessions of PostgreSQL are.
    ///
    /// # Errors
    /// The system refuses.
    pub fn send_to_all(&self, signal: Signal) -> anyhow::Result<()> {
        self.send(signal)?;
        for child in children(self.pid) {
            // It may have ended meanwhile.
            let _ = kill_process(child, signal);
        }
        Ok(())
    }

    fn ends_within(&mut self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(LOOK_EVERY);
        }
        true
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ends_within(Duration::ZERO) {
            return;
        }
        // The child has not been waited for, so its id cannot belong to another process. A failure to
        // send means that it ended meanwhile.
        let _ = match self.stop.to {
            Target::Process => kill_process(self.pid, self.stop.signal),
            Target::Group => kill_process_group(self.pid, self.stop.signal),
        };
        // What is stopped does not end, and the sessions of PostgreSQL are not in its group.
        let _ = self.send_to_all(Signal::CONT);
        if !self.ends_within(self.stop.grace) {
            eprintln!(
                "process {} did not end within {:?}: killing it",
                self.pid, self.stop.grace
            );
            self.kill_children();
            let _ = kill_process_group(self.pid, Signal::KILL);
            let _ = self.child.start_kill();
            self.ends_within(KILLED);
        }
    }
}

/// A command as a person would type it, without its environment.
pub fn shown(command: &Command) -> String {
    let command = command.as_std();
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// The processes that a process has started; none where the system does not tell.
fn children(of: Pid) -> Vec<Pid> {
    let of = of.as_raw_nonzero();
    let listed = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    let listed = listed.unwrap_or_default();
    let children = listed.split_whitespace().filter_map(|child| child.parse().ok());
    children.filter_map(Pid::from_raw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Stop = Stop {
        signal: Signal::TERM,
        to: Target::Group,
        grace: Duration::from_millis(200),
    };

    fn alive(pid: Pid) -> bool {
        rustix::process::test_kill_process(pid).is_ok()
    }

    /// Starts a shell script and returns once the script has written the file `ready`.
    async fn start(script: &str, folder: &std::path::Path) -> Process {
        let process = Process::start(Command::new("sh").current_dir(folder).args(["-c", script]), STOP);
        while !folder.join("ready").exists() {
            tokio::task::yield_now().await;
        }
        process.expect("sh starts")
    }

    /// Ends the shell of a script that has written its child's number into `ready`. The child ends too.
    async fn assert_the_child_ends(script: &str, end: impl FnOnce(Process)) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let process = start(script, folder.path()).await;
        let shell = process.pid;
        let child = std::fs::read_to_string(folder.path().join("ready")).unwrap();
        let child = child.trim();
        assert!(alive(shell));
        end(process);
        assert!(!alive(shell));
        // The process that adopted the child reaps it: a zombie is as good as gone.
        let stat = || std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        let deadline = Instant::now() + Duration::from_secs(5);
        while !(stat().is_empty() || stat().contains(") Z ")) {
            assert!(Instant::now() < deadline, "the child {child} lives on");
            tokio::task::yield_now().await;
        }
        folder
    }

    #[tokio::test]
    async fn a_dropped_process_ends_with_its_group() {
        assert_the_child_ends("sleep 100 & echo $! > child; mv child ready; wait", drop).await;
    }

    /// As when a test fails that has stopped a PostgreSQL.
    #[tokio::test]
    async fn a_dropped_process_ends_with_stopped_children_that_have_groups_of_their_own() {
        let all_stopped = |process: Process| {
            process.send_to_all(Signal::STOP).unwrap();
            drop(process);
        };
        let tells = "trap 'touch told; kill $(cat ready); exit' TERM; setsid sleep 100 & echo $! > child; mv child ready; wait";
        let folder = assert_the_child_ends(tells, all_stopped).await;
        assert!(folder.path().join("told").exists(), "it ended in order");
        let ignores = "trap '' TERM; setsid sleep 100 & echo $! > child; mv child ready; wait";
        assert_the_child_ends(ignores, all_stopped).await;
    }

    /// As the sessions of PostgreSQL have.
    #[tokio::test]
    async fn a_killed_process_ends_with_children_that_have_groups_of_their_own() {
        let script = "setsid sleep 100 & echo $! > child; mv child ready; wait";
        assert_the_child_ends(script, Process::kill).await;
    }

    #[tokio::test]
    async fn a_process_that_ignores_the_signal_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let process = start(
            "trap '' TERM; touch ready; while :; do sleep 1; done",
            folder.path(),
        )
        .await;
        let shell = process.pid;
        drop(process);
        assert!(!alive(shell));
    }

    #[test]
    fn a_command_is_shown_without_its_environment() {
        let mut command = Command::new("cargo");
        command.args(["test", "--workspace"]).env("PASSWORD", "secret");
        assert_eq!(shown(&command), "cargo test --workspace");
    }
}
