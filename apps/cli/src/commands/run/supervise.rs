//! Watches over a running command: its lease, its end, the signals, the terminal.

use std::fmt;
use std::future::pending;
use std::time::Duration;

use dblock::{CurrentLock, LockError};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgrp, getpid};
use tokio::time::{Instant, sleep, sleep_until};

use super::group::{Change, Group};
use super::signals::{self, Signals};
use super::terminal::Terminal;
use crate::failure::{Code, Failure};

/// KILL is sent this long before the lease ends for us: about what the system takes to carry it out.
const KILL_TAKES: Duration = Duration::from_millis(50);

/// How the command ended.
#[derive(Debug)]
pub(super) enum Ended {
    Exited(u8),
    Killed(Signal),
    /// A signal came before it was started.
    NotStarted(Signal),
    /// We stopped it, and this is why.
    Stopped(Why),
    /// It ended by itself, but its lease had ended before.
    Late(LockError),
}

/// Why the command was stopped.
#[derive(Debug)]
pub(super) enum Why {
    Revoked,
    Lost(LockError),
    /// It was not renewed for so long that it would have ended during the grace.
    NotRenewed,
}

impl Ended {
    pub(super) fn code(&self) -> Code {
        match self {
            Self::Exited(code) => Code::Of(*code),
            Self::Killed(signal) | Self::NotStarted(signal) => signals::code(*signal),
            Self::Stopped(_) | Self::Late(_) => Code::Lost,
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Exited(_) => "exited",
            Self::Killed(_) | Self::NotStarted(_) => "signalled",
            Self::Stopped(_) => "stopped",
            Self::Late(_) => "lost",
        }
    }

    /// What a person is told, beside the exit code.
    pub(super) fn message(&self) -> Option<String> {
        match self {
            Self::Exited(_) | Self::Killed(_) => None,
            Self::NotStarted(signal) => Some(format!("{signal} came before the command was started")),
            Self::Stopped(why) => Some(format!("{why}: the command was stopped")),
            Self::Late(error) => Some(format!(
                "{error}: the command went on without the lock until it ended"
            )),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Revoked => f.write_str("the lock was revoked"),
            Self::Lost(error) => error.fmt(f),
            Self::NotRenewed => {
                f.write_str("the lease was about to end without a renewal, or --max-hold was over")
            }
        }
    }
}

/// Waits for the end of the command and of its group.
pub(super) async fn supervise(
    lock: &CurrentLock,
    group: Group,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    let terminal = Terminal::open();
    let mut stopped = None;
    let mut kill_at = None;
    let end = loop {
        tokio::select! {
            biased;
            why = must_stop(lock, grace), if stopped.is_none() => {
                if lock.remaining().is_zero() {
                    // TERM would let a command that is stopped go on for a moment.
                    stopped = Some(Why::Lost(lock.lost().await));
                    group.signal(Signal::SIGKILL);
                } else {
                    stopped = Some(why);
                    group.terminate();
                    kill_at = Some(last_moment(lock, grace));
                }
            }
            // During the grace, too: somebody else may have the lock.
            _ = lock.lost(), if kill_at.is_some() => {
                kill_at = None;
                group.signal(Signal::SIGKILL);
            }
            () = at(kill_at) => {
                kill_at = None;
                group.signal(Signal::SIGKILL);
            }
            signal = signals.next() => match signal {
                Signal::SIGCHLD => group.reap_adopted(),
                Signal::SIGTSTP => suspend(&group),
                Signal::SIGCONT => resume(&group, lock),
                signal => group.signal(signal),
            },
        }
        // All that happened, whatever woke us: the system may report several changes by one signal.
        if let Some(end) = changed(&group, terminal.as_ref())? {
            break end;
        }
    };
    if terminal.is_some_and(|terminal| terminal.take_back())
        && let Ended::Killed(signal @ (Signal::SIGINT | Signal::SIGQUIT)) = end
    {
        // The terminal would have sent it to this process's group too, such as to the script that called us.
        let _ = killpg(getpgrp(), signal);
    }
    group
        .clear(kill_at.unwrap_or_else(|| last_moment(lock, grace)))
        .await;
    Ok(stopped.map_or(end, Ended::Stopped))
}

/// Completes when the command must end.
pub(super) async fn must_stop(lock: &CurrentLock, grace: Duration) -> Why {
    tokio::select! {
        biased;
        lost = lock.lost() => Why::Lost(lost),
        () = lock.revoked() => Why::Revoked,
        () = ends_within(lock, grace) => Why::NotRenewed,
    }
}

/// Completes when the lease has no more than `grace` left. Renewals move that moment.
async fn ends_within(lock: &CurrentLock, grace: Duration) {
    loop {
        let left = lock.remaining().saturating_sub(grace);
        if left.is_zero() {
            return;
        }
        sleep(left).await;
    }
}

/// When to send KILL: after the grace, and before the lease ends. At once when it has ended.
fn last_moment(lock: &CurrentLock, grace: Duration) -> Instant {
    Instant::now() + grace.min(lock.remaining().saturating_sub(KILL_TAKES))
}

async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}

/// Looks at what the leader has done. Its end, if it has ended.
fn changed(group: &Group, terminal: Option<&Terminal>) -> Result<Option<Ended>, Failure> {
    loop {
        let change = group
            .change()
            .map_err(|error| Failure::new(Code::System, format!("the command cannot be watched: {error}")))?;
        match change {
            None => return Ok(None),
            Some(Change::Exited(code)) => {
                return Ok(Some(Ended::Exited(u8::try_from(code).unwrap_or(u8::MAX))));
            }
            Some(Change::Killed(signal)) => return Ok(Some(Ended::Killed(signal))),
            Some(Change::Stopped(signal)) => {
                if let Some(terminal) = terminal {
                    stopped(group, terminal, signal);
                }
            }
        }
    }
}

/// The command was stopped. It asked for the terminal, or Ctrl-Z was meant for this process as well.
/// Otherwise somebody stopped it on purpose, and the lease is renewed meanwhile.
fn stopped(group: &Group, terminal: &Terminal, signal: Signal) {
    match signal {
        Signal::SIGTTIN | Signal::SIGTTOU if terminal.is_ours() => {
            terminal.give_to(group.id());
            group.signal(Signal::SIGCONT);
        }
        // In the background there is no terminal to be had: the whole job stops, until it is in the
        // foreground.
        Signal::SIGTTIN | Signal::SIGTTOU => stop_job(group),
        Signal::SIGTSTP if terminal.is_of(group.id()) => {
            terminal.take_back();
            stop_job(group);
        }
        _ => {}
    }
}

/// Stops the command and this process's group, as the terminal would have done.
fn stop_job(group: &Group) {
    group.signal(Signal::SIGSTOP);
    let _ = killpg(getpgrp(), Signal::SIGSTOP);
}

/// Ctrl-Z, or `kill -TSTP`: stops the command and then this process. Nobody renews the lease meanwhile, so
/// the command may not run, whatever it thinks of TSTP.
fn suspend(group: &Group) {
    group.signal(Signal::SIGSTOP);
    let this: Pid = getpid();
    let _ = kill(this, Signal::SIGSTOP);
}

/// The job goes on, unless its lease has ended while it was stopped. Then it is killed where it stands.
fn resume(group: &Group, lock: &CurrentLock) {
    if !lock.remaining().is_zero() {
        group.signal(Signal::SIGCONT);
    }
}
