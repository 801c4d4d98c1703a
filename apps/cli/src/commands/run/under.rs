//! Running the command under its lock, whether the run is remembered or not.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use dblock::{CurrentLock, LockError, LockOptions};
use nix::sys::signal::Signal;
use serde::Serialize;

use super::group::Group;
use super::launcher::Launched;
use super::signals::Signals;
use super::supervise::{Ended, must_stop, supervise};
use crate::cli::{RunArguments, StoreArguments};
use crate::duration::Wait;
use crate::failure::{Code, Failure};
use crate::output;
use crate::remedy::with_options;

/// How the command went: one line on stderr with `--json`. Its fields are a promise: docs/cli.md lists them.
#[derive(Debug, Serialize)]
struct Report<'a> {
    key: &'a str,
    fence_token: i64,
    /// `exited`, `signalled`, `stopped` or `lost`.
    outcome: &'static str,
    exit_code: u8,
    waited_seconds: f64,
    held_seconds: f64,
    /// What else is to be said.
    message: Option<String>,
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
    if arguments.shared {
        options = options.shared();
    }
    if let Some(limit) = arguments.limit {
        options = options.limit(limit);
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
    let failed = |error: io::Error| {
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
    };
    let (group, launcher) = Group::of(program, rest, |command| {
        command
            .env("DBLOCK_KEY", lock.full_key())
            .env("DBLOCK_FENCE_TOKEN", lock.fence_token().to_string());
    })
    .map_err(failed)?;
    // Until here nothing was done under the lock.
    if let Some(signal) = signals.come().await {
        return Ok(Ended::NotStarted(signal));
    }
    // This process may have stood still since it looked at the lease.
    long_enough(lock, grace).await?;
    let begun = {
        let mut begins = pin!(launcher.launch());
        // To execute a program may take long, such as one on a file system that does not answer.
        loop {
            tokio::select! {
                biased;
                begun = &mut begins => break begun.map_err(failed)?,
                signal = signals.ending() => group.signal(signal),
                _ = must_stop(lock, grace) => {
                    group.signal(Signal::SIGKILL);
                    break begins.await.map_err(failed)?;
                }
            }
        }
    };
    match begun {
        Launched::Started => supervise(lock, group, grace, signals).await,
        Launched::Failed(error) => Err(failed(error)),
        Launched::Ended => match group.launcher_end().map_err(failed)? {
            Some(signal) => Ok(Ended::NotStarted(signal)),
            None => Err(failed(io::Error::other("its launcher ends"))),
        },
    }
}

/// Says how the command went. `unconfirmed`: the lock is not known to be free.
pub(super) fn report(
    store: &StoreArguments,
    lock: &CurrentLock,
    ended: &Ended,
    unconfirmed: Option<Failure>,
    waited: Duration,
    held: Duration,
) -> Result<Code, Failure> {
    let unconfirmed = unconfirmed.map(|failure| with_options(failure.message(), store));
    let messages: Vec<_> = ended.message().into_iter().chain(unconfirmed).collect();
    let message = (!messages.is_empty()).then(|| messages.join("; "));
    if store.json {
        let report = Report {
            key: lock.key(),
            fence_token: lock.fence_token(),
            outcome: ended.word(),
            exit_code: ended.code().number(),
            waited_seconds: seconds(waited),
            held_seconds: seconds(held),
            message,
        };
        output::told(&output::json_text(&report)?);
    } else if let Some(message) = message {
        output::told(&format!("dblock: {}", output::printable(&message)));
    }
    Ok(ended.code())
}

/// In whole µs: more digits would be noise.
fn seconds(time: Duration) -> f64 {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX)).as_secs_f64()
}
