//! `dblock run --once`: a command that is not run again once it has succeeded.
//!
//! Exit code 0 is a success, and any other a failure, after which it may run again. A command that a signal
//! ended, or that was stopped because its lease was lost, was interrupted: the call is given up like one
//! whose process has died, and `--on-crash` decides about the next.

use std::cell::Cell;
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::time::{Duration, Instant};

use dblock::{CurrentLock, LockError, LockManager, OnCrash, OnLost, Run, RunError, RunOptions};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::holder;
use super::signals::{self, Signals};
use super::supervise::Ended;
use super::under::{current, long_enough, options, report, under};
use crate::cli::{Interrupted, RunArguments, StoreArguments};
use crate::failure::{Code, Failure};
use crate::output;
use crate::progress::during_seen;
use crate::remedy::with_options;

/// Why the body of the run has no success.
enum Failed {
    Lock(LockError),
    Command(Ended),
    /// The command did not start.
    NotStarted(Failure),
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<Interrupted> for OnCrash {
    fn from(interrupted: Interrupted) -> Self {
        match interrupted {
            Interrupted::Retry => Self::Retry,
            Interrupted::Stop => Self::Stop,
        }
    }
}

/// The error in the record.
impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::Command(Ended::NotStarted(signal)) => {
                write!(f, "{signal} came before the command was started")
            }
            Self::Command(ended) => write!(f, "exit code {}", ended.code().number()),
            Self::NotStarted(failure) => f.write_str(failure.message()),
        }
    }
}

/// The one that comes first: a signal, or the end of the run.
enum First<T> {
    Signal(Signal),
    /// The run has ended without the command.
    Done(T),
    Entered(CurrentLock),
}

pub(super) async fn once(
    locks: &LockManager,
    store: &StoreArguments,
    arguments: &RunArguments,
    name: &str,
    run: RunOptions,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Code, Failure> {
    let since = Instant::now();
    let run = run.lock(options(arguments).on_lost(OnLost::Signal));
    let (enter, entered) = oneshot::channel();
    let (lend, borrowed) = oneshot::channel::<&mut Signals>();
    let (interrupt, interrupted) = oneshot::channel();
    let (give_up, none_starts) = oneshot::channel();
    let begun = Cell::new(false);
    // A command has no result. An operator who resolves its record may give it one, of any type.
    let entering = &begun;
    let body = async move |_: Run| {
        entering.set(true);
        let lock = current();
        let ready = async {
            long_enough(&lock, grace).await?;
            let _ = enter.send(lock.clone());
            match borrowed.await {
                Ok(signals) => Ok::<_, LockError>(signals),
                // Nobody waits for the run any more.
                Err(_) => pending().await,
            }
        };
        let signals = tokio::select! {
            biased;
            Ok(signal) = none_starts => return Err(Failed::Command(Ended::NotStarted(signal))),
            signals = ready => signals?,
        };
        let ended = under(&lock, arguments, grace, signals).await;
        match ended.map_err(Failed::NotStarted)? {
            Ended::Exited(0) => Ok(Value::Null),
            ended @ (Ended::Exited(_) | Ended::NotStarted(_)) => Err(Failed::Command(ended)),
            ended => {
                let _ = interrupt.send(ended);
                pending().await
            }
        }
    };
    let mut run = pin!(locks.run_once(name, run, body));
    let first = async {
        tokio::select! {
            biased;
            signal = signals.next() => First::Signal(signal),
            Ok(lock) = entered => First::Entered(lock),
            done = &mut run => First::Done(done),
        }
    };
    let lock = match during_seen(
        &format!("waiting for run {name:?}"),
        async || holder(locks, name).await,
        first,
    )
    .await
    {
        First::Signal(signal) => {
            // The command was not started. A run that has begun says so in its record; another signal ends
            // that, too.
            if begun.get() && give_up.send(signal).is_ok() {
                tokio::select! {
                    biased;
                    _ = signals.next() => {}
                    _ = &mut run => {}
                }
            }
            return Ok(signals::code(signal));
        }
        // A service's run may have had a result that was too large to be kept. A command needs none.
        First::Done(
            Ok(_)
            | Err(Failed::Lock(LockError::Run {
                reason: RunError::NotStored { .. },
                ..
            })),
        ) => return Ok(already_done(store, name)),
        First::Done(Err(failed)) => return Err(failure(failed, arguments)),
        First::Entered(lock) => lock,
    };
    let (waited, entered) = (since.elapsed(), Instant::now());
    let _ = lend.send(signals);
    let ended = tokio::select! {
        Ok(ended) = interrupted => {
            if !store.json {
                let told = format!(
                    "dblock: the run {name:?} was interrupted, and nobody knows how far it came; its record says so: \
                     dblock records show {}",
                    quoted(name)
                );
                output::told(&with_options(&told, store));
            }
            ended
        }
        done = &mut run => match done {
            Ok(_) => Ended::Exited(0),
            Err(Failed::Command(ended)) => ended,
            Err(failed) => return Err(failure(failed, arguments)),
        },
    };
    report(store, &lock, &ended, None, waited, entered.elapsed())
}

/// For a shell.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    if !name.starts_with('-') && name.chars().all(plain) {
        return name.to_owned();
    }
    format!("-- '{}'", output::printable(name).replace('\'', r"'\''"))
}

fn already_done(store: &StoreArguments, name: &str) -> Code {
    if store.json {
        output::told(
            &output::json_text(
                &json!({"key": name, "outcome": "already_done", "exit_code": Code::Done.number()}),
            )
            .unwrap_or_default(),
        );
    } else {
        output::told(&format!(
            "dblock: the run {name:?} has succeeded before, so nothing was run"
        ));
    }
    Code::Done
}

fn failure(failed: Failed, arguments: &RunArguments) -> Failure {
    let error = match failed {
        Failed::Lock(error) => error,
        Failed::NotStarted(failure) => return failure,
        Failed::Command(ended) => return Failure::new(ended.code(), "the command failed"),
    };
    let failure = Failure::from(error);
    if failure.code == Code::Busy {
        return failure.with(Code::BusyAs(arguments.busy_code));
    }
    failure
}
