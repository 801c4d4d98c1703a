//! The signals that this process forwards to the command.

use std::future::poll_fn;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::task::Poll;

use nix::sys::signal::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

use crate::failure::{Code, Failure};

/// Those that end the wait for a lock.
const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// Those that concern a running command only.
const RUNNING: [Signal; 6] = [
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGCHLD,
];

/// Listens from its creation on.
#[derive(Debug)]
pub(super) struct Signals {
    listening: Vec<(Signal, unix::Signal)>,
    /// The signals that were ignored when this process started, as `nohup` has it: they stay ignored, by the
    /// command too.
    ignored: u64,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, Failure> {
        let mut signals = Self {
            listening: Vec::new(),
            ignored: ignored(),
        };
        signals.add(&ENDING)?;
        Ok(signals)
    }

    /// Listens to those too that have their usual effect while there is no command.
    pub(super) fn listen_to_the_rest(&mut self) -> Result<(), Failure> {
        self.add(&RUNNING)
    }

    fn add(&mut self, kinds: &[Signal]) -> Result<(), Failure> {
        for &kind in kinds {
            let number = kind as i32;
            if self.ignored & (1 << (number - 1)) != 0 && kind != Signal::SIGCHLD {
                continue;
            }
            let listening = signal(SignalKind::from_raw(number))
                .map_err(|error| Failure::new(Code::System, format!("{kind} cannot be handled: {error}")))?;
            self.listening.push((kind, listening));
        }
        Ok(())
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Signal {
        self.next_that(|_| true).await
    }

    /// The next signal that ends the wait for a lock.
    pub(super) async fn ending(&mut self) -> Signal {
        self.next_that(|kind| ENDING.contains(&kind)).await
    }

    /// The same, if one has come already.
    pub(super) async fn come(&mut self) -> Option<Signal> {
        tokio::select! {
            biased;
            signal = self.ending() => Some(signal),
            // Meanwhile the runtime looks at what has come.
            () = tokio::task::yield_now() => None,
        }
    }

    async fn next_that(&mut self, wanted: impl Fn(Signal) -> bool) -> Signal {
        poll_fn(|context| {
            for (kind, listening) in self.listening.iter_mut().filter(|(kind, _)| wanted(*kind)) {
                if listening.poll_recv(context).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The exit code of what a signal ended: 128 and its number, as in a shell.
pub(super) fn code(signal: Signal) -> Code {
    if signal == Signal::SIGINT {
        return Code::Interrupted;
    }
    Code::Of(u8::try_from(128 + signal as i32).unwrap_or(u8::MAX))
}

/// Ends this process by SIGINT. A shell that runs a script or a loop goes on after any exit code: only that
/// stops it. A handled signal can be reset to its default in one safe way, by executing another program.
pub(super) fn die_interrupted() {
    // Where there is no shell, the exit code must do.
    let _ = Command::new("/bin/sh").args(["-c", "kill -s INT $$"]).exec();
}

/// The signals that are ignored, as bits. Only Linux says so; elsewhere none.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
