//! The command's process group.

use std::ffi::OsStr;
use std::io;
use std::process::Command;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
#[cfg(target_os = "linux")]
use nix::sys::wait::{Id, waitid};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep_until};

use super::launcher::Launcher;
use super::watchdog::Watchdog;

/// How often a group is looked at whose processes are not all children of this one.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The group of the command, whose leader is the launcher and then the command. It is killed when this is
/// dropped.
#[derive(Debug)]
pub(super) struct Group {
    leader: Pid,
    /// Its number may be another group's by now.
    is_gone: bool,
    watchdog: Watchdog,
}

/// A change of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Exited(i32),
    Killed(Signal),
    Stopped(Signal),
}

impl Group {
    /// The group of a command that has not started, with the launcher that starts it. From here on the group
    /// ends with this process. `prepare` sets the command's environment.
    pub(super) fn of(
        program: &OsStr,
        arguments: &[impl AsRef<OsStr>],
        prepare: impl FnOnce(&mut Command),
    ) -> io::Result<(Self, Launcher)> {
        adopt_orphans();
        let alone = |error| io::Error::other(format!("its watchdog fails: {error}"));
        let watchdog = Watchdog::start().map_err(alone)?;
        let launcher = Launcher::start(program, arguments, prepare)?;
        let mut group = Self {
            leader: launcher.id(),
            is_gone: false,
            watchdog,
        };
        group.watchdog.watch(group.leader).map_err(alone)?;
        Ok((group, launcher))
    }

    pub(super) fn id(&self) -> Pid {
        self.leader
    }

    /// Sends a signal to all processes of the group. That they may all be gone is no mistake.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = killpg(self.leader, signal);
    }

    /// The change of the leader since the last look.
    pub(super) fn change(&self) -> io::Result<Option<Change>> {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED;
        Ok(match waitpid(self.leader, Some(flags))? {
            WaitStatus::Exited(_, code) => Some(Change::Exited(code)),
            WaitStatus::Signaled(_, signal, _) => Some(Change::Killed(signal)),
            WaitStatus::Stopped(_, signal) => Some(Change::Stopped(signal)),
            _ => None,
        })
    }

    /// Takes note of the end of those that were adopted: each would stay a zombie until this process ends. The
    /// ends of the leader and of the watchdog are for others to see.
    pub(super) fn reap_adopted(&self) {
        #[cfg(target_os = "linux")]
        {
            let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
            let ours = [self.leader, self.watchdog.id()];
            while let Some(ended) = waitid(Id::All, flags).ok().and_then(|ended| ended.pid())
                && !ours.contains(&ended)
            {
                let _ = waitpid(ended, Some(WaitPidFlag::WNOHANG));
            }
        }
    }

    /// Waits for the end of a launcher that has not become the command. The signal that ended it, if one did.
    pub(super) fn launcher_end(&self) -> io::Result<Option<Signal>> {
        Ok(match waitpid(self.leader, None)? {
            WaitStatus::Signaled(_, signal, _) => Some(signal),
            _ => None,
        })
    }

    /// Ends what the command has left behind: TERM, and KILL at `kill_at`. Returns when the group is empty.
    pub(super) async fn clear(mut self, kill_at: Instant) {
        self.is_gone = self.is_empty();
        if !self.is_gone {
            self.terminate();
            self.wait_until_empty(kill_at).await;
        }
    }

    async fn wait_until_empty(&mut self, kill_at: Instant) {
        while !self.is_empty() {
            let now = Instant::now();
            if now >= kill_at {
                self.signal(Signal::SIGKILL);
            }
            // Nothing survives KILL; a process that hangs in the system does nothing either.
            if now >= kill_at + Duration::from_secs(1) {
                return;
            }
            sleep_until(now + LOOK_EVERY).await;
        }
        self.is_gone = true;
    }

    /// Asks all to end, also those that are stopped.
    pub(super) fn terminate(&self) {
        self.signal(Signal::SIGTERM);
        self.signal(Signal::SIGCONT);
    }

    /// Whether no process of the group is left. Takes note of the end of those that were adopted.
    fn is_empty(&self) -> bool {
        let group = Pid::from_raw(-self.leader.as_raw());
        while let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) =
            waitpid(group, Some(WaitPidFlag::WNOHANG))
        {}
        killpg(self.leader, None) == Err(Errno::ESRCH)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_gone {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// Makes this process the parent of what the command's processes leave behind, so that their end is seen
/// here, where nobody else may look after them, as in a container. Only Linux can do that.
fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = nix::sys::prctl::set_child_subreaper(true);
}
