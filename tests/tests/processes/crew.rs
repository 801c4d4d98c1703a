//! The processes: starting them, killing the one that is inside, sending them home.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dblock::{InspectFilter, LockManager};
use dblock_tests::hot_account::{Event, Log, monotonic_ns};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

use super::PROCESSES;

/// How long a process may take to finish its last bodies and go.
const FAREWELL: Duration = Duration::from_secs(20);

/// The running processes, and those that have ended.
pub(crate) struct Crew<'a> {
    url: &'a str,
    logs: &'a Path,
    members: Vec<Member>,
    pub(crate) former: Vec<Former>,
}

struct Member {
    /// 0 to 7. A killed member's successor has the same.
    seat: usize,
    process: Child,
    /// Closing it asks the process to end.
    stdin: Option<ChildStdin>,
    log: PathBuf,
}

impl Member {
    /// Its last body has begun and not ended. Only a process that [`stop`] stopped stays that way.
    fn is_inside(&self) -> bool {
        let log = Log::read(&self.log).unwrap();
        let mut visits = log.iter().rev().filter(|event| !matches!(event, Event::Fault(_)));
        matches!(visits.next(), Some(Event::Enter { .. }))
    }
}

pub(crate) struct Former {
    pub(crate) seat: usize,
    pub(crate) log: PathBuf,
    /// When it was surely dead, if it was killed.
    pub(crate) killed_ns: Option<i64>,
}

impl<'a> Crew<'a> {
    pub(crate) fn start(url: &'a str, logs: &'a Path) -> Self {
        let mut crew = Self {
            url,
            logs,
            members: Vec::new(),
            former: Vec::new(),
        };
        for seat in 0..PROCESSES {
            crew.hire(seat);
        }
        crew
    }

    fn hire(&mut self, seat: usize) {
        let log = self.logs.join(format!("{}-{seat}", self.former.len()));
        let mut process = Command::new(env!("CARGO_BIN_EXE_dblock-test-worker"))
            .arg(self.url)
            .arg(&log)
            .stdin(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        self.members.push(Member {
            seat,
            stdin: process.stdin.take(),
            process,
            log,
        });
    }

    /// Kills a process that holds the lock, and starts another in its place. The one that the row
    /// names is stopped first and killed only if its log says that it is inside: the lock changes hands all
    /// the time.
    pub(crate) async fn kill_the_holder(&mut self, locks: &LockManager) {
        loop {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await;
            let Some(pid) = holder(locks).await else { continue };
            let is_holder = |member: &Member| member.process.id() == Some(pid);
            // The row may still name a process that was killed before.
            let Some(at) = self.members.iter().position(is_holder) else {
                continue;
            };
            let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            stop(process);
            if !self.members[at].is_inside() {
                kill_process(process, Signal::CONT).unwrap();
                continue;
            }
            let mut member = self.members.swap_remove(at);
            member.process.kill().await.unwrap();
            self.former.push(Former {
                seat: member.seat,
                log: member.log,
                killed_ns: Some(monotonic_ns()),
            });
            return self.hire(member.seat);
        }
    }

    /// Waits until somebody is inside whom the last kill let in.
    pub(crate) async fn until_taken_over(&self) {
        let killed = self.former.iter().filter_map(|former| former.killed_ns).max();
        let is_after = |event: &Event| matches!(event, Event::Enter { at_ns, .. } if Some(*at_ns) > killed);
        // The last line of a log may be half written.
        let has_entered =
            |member: &Member| Log::read(&member.log).is_ok_and(|log| log.iter().rev().any(is_after));
        while !self.members.iter().any(has_entered) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks everyone to end, and waits for that.
    pub(crate) async fn dismiss(&mut self) {
        for member in &mut self.members {
            member.stdin = None;
        }
        for mut member in self.members.drain(..) {
            let status = timeout(FAREWELL, member.process.wait()).await;
            let status = status.unwrap_or_else(|_| panic!("a process is still there after {FAREWELL:?}"));
            assert!(status.unwrap().success(), "a process failed; its error is above");
            self.former.push(Former {
                seat: member.seat,
                log: member.log,
                killed_ns: None,
            });
        }
    }
}

/// Stops `process`. The signal alone does not: its threads run on for a moment, and a body may end meanwhile.
fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(process), stopped).unwrap();
}

/// The process that the row names as the holder of a running lease.
async fn holder(locks: &LockManager) -> Option<u32> {
    let rows = locks.inspect(InspectFilter::new()).await.unwrap();
    let holder = &rows.first()?.holder;
    let (_host, process) = holder.split(' ').next()?.rsplit_once('/')?;
    Some(process.parse().unwrap())
}
