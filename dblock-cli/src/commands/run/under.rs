//! Running the command under its lock, whether the run is remembered or not.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dblock::{CurrentLock, LockError, LockOptions};
use serde::Serialize;

use super::group::Group;
use super::signals::Signals;
use super::supervise::{Ended, supervise};
use crate::cli::{RunArguments, StoreArguments};
use crate::duration::Wait;
use crate::failure::{Code, Failure};
use crate::output;

/// How the command went: one line on stderr with `--json`. Its fields are a promise: docs/cli.md lists them.
#[derive(Debug, Serialize)]
struct Report<'a> {
    key: &'a str,
    fence_token: i64,
    /// `exited`, `signalled` or `stopped`.
    outcome: &'static str,
    exit_code: u8,
    waited_seconds: f64,
    held_seconds: f64,
}

pub(super) fn options(arguments: &RunArguments) -> LockOptions {
    let program = arguments.command.first().map(Path::new).and_then(Path::file_name);
    let program = program.unwrap_or(OsStr::new("")).to_string_lossy();
    // It is leaked once: a process runs one command.
    let function = format!("dblock run {program}").leak();
    let mut options = LockOptions::new().ttl(arguments.ttl).function(function);
    options = match arguments.wait {
        None => options,
        Some(Wait::For(wait)) => options.wait(wait),
        Some(Wait::Forever) => options.wait_forever(),
    };
    if let Some(hold_min) = arguments.hold_min {
        options = options.hold_min(hold_min);
    }
    if let Some(max_hold) = arguments.max_hold {
        options = options.max_hold(max_hold);
    }
    options
}

/// The lock that the running code is under.
pub(super) fn current() -> CurrentLock {
    dblock::current().expect("it is called inside of a lock")
}

/// Waits until the lease is long enough to stop the command in time: one that another process passed on is
/// short until the first renewal.
pub(super) async fn long_enough(lock: &CurrentLock, grace: Duration) -> Result<(), LockError> {
    while lock.remaining() <= grace {
        tokio::select! {
            lost = lock.lost() => return Err(lost),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    Ok(())
}

/// Runs the command, and returns when nothing is left of its group.
pub(super) async fn under(
    lock: &CurrentLock,
    arguments: &RunArguments,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Ended, Failure> {
    signals.listen_to_the_rest()?;
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Failure::new(Code::Usage, "there is no command to run"));
    };
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("DBLOCK_KEY", lock.key())
        .env("DBLOCK_FENCE_TOKEN", lock.fence_token().to_string());
    let group = Group::start(&mut command).map_err(|error| {
        let code = if error.kind() == io::ErrorKind::NotFound {
            Code::NotFound
        } else {
            Code::NotExecutable
        };
        Failure::new(
            code,
            format!(
                "{} cannot be run: {error}; check its path, and whether this user may execute it",
                program.display()
            ),
        )
    })?;
    supervise(lock, group, grace, signals).await
}

/// Says how the command went.
pub(super) fn report(
    store: &StoreArguments,
    lock: &CurrentLock,
    ended: &Ended,
    waited: Duration,
    held: Duration,
) -> Result<Code, Failure> {
    if store.json {
        let report = Report {
            key: store.typed(lock.key()),
            fence_token: lock.fence_token(),
            outcome: ended.word(),
            exit_code: ended.code().number(),
            waited_seconds: waited.as_secs_f64(),
            held_seconds: held.as_secs_f64(),
        };
        output::told(&serde_json::to_string(&report).map_err(io::Error::other)?);
    } else if let Ended::Stopped(why) = ended {
        output::told(&format!("dblock: {why}: the command was stopped"));
    }
    Ok(ended.code())
}
