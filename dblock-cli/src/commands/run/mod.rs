//! `dblock run`: a command under a lock.
//!
//! The command has a process group of its own. When the lease is about to end, or an operator revoked it, the group gets
//! TERM, and KILL after the grace and before the local deadline: until then nobody else can have the lock.

mod group;
mod once;
mod signals;
mod supervise;
mod terminal;
pub(crate) mod watchdog;

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use dblock::{CurrentLock, LockError, LockGuard, LockManager, LockOptions, RunOptions};
use serde::Serialize;

use self::group::Group;
use self::signals::Signals;
use self::supervise::{Ended, supervise};
use self::terminal::Terminal;
use crate::cli::{RunArguments, StoreArguments};
use crate::connect::{Missing, manager};
use crate::duration::{Wait, shown};
use crate::failure::{Code, Failure};
use crate::output;
use crate::progress::during;

/// The grace where none is given and the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

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

pub(crate) async fn run(store: &StoreArguments, arguments: &RunArguments) -> Result<Code, Failure> {
    let grace = grace(arguments)?;
    let mut signals = Signals::listen()?;
    let code = connected(store, arguments, grace, &mut signals).await;
    if let Ok(Code::Interrupted) = code
        && Terminal::open().is_some_and(|terminal| terminal.is_ours())
    {
        signals::die_interrupted();
    }
    code
}

async fn connected(
    store: &StoreArguments,
    arguments: &RunArguments,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Code, Failure> {
    let locks = tokio::select! {
        biased;
        signal = signals.next() => return Ok(signals::code(signal)),
        locks = during("connecting to the database", manager(store, Missing::AsTheLibrary)) => locks?,
    };
    let code = match (&arguments.once, arguments.remember, arguments.on_crash) {
        (Some(name), Some(remember), Some(on_crash)) => {
            let run = RunOptions::new(remember, on_crash.into());
            once::once(&locks, store, arguments, name, run, grace, signals).await
        }
        // One of them is not given without the others.
        _ => with_lock(&locks, store, arguments, grace, signals).await,
    };
    // The store must still be told what was given up, such as a place in the queue.
    locks.shutdown(Duration::ZERO).await;
    code
}

async fn with_lock(
    locks: &LockManager,
    store: &StoreArguments,
    arguments: &RunArguments,
    grace: Duration,
    signals: &mut Signals,
) -> Result<Code, Failure> {
    let since = Instant::now();
    let key = arguments.key.as_deref().unwrap_or_default();
    let waiting = format!("waiting for lock {key:?}");
    let (guard, lock) = tokio::select! {
        biased;
        signal = signals.next() => return Ok(signals::code(signal)),
        taken = during(&waiting, acquire(locks, key, arguments, grace)) => match taken {
            Err(busy) if busy.code == Code::Busy => return Err(busy.with(Code::BusyAs(arguments.busy_code))),
            taken => taken?,
        },
    };
    let (waited, entered) = (since.elapsed(), Instant::now());
    let ended = under(&lock, arguments, grace, signals).await;
    let held = entered.elapsed();
    let released = guard.release().await;
    let ended = ended?;
    match released {
        // That the lease has ended is why the command was stopped.
        Err(error) if !(error.is_lost() && matches!(ended, Ended::Stopped(_))) => {
            let remedy = "the command has ended, and the lock is free when its lease has ended";
            let left = shown(arguments.ttl);
            Failure::from(error)
                .with_remedy(&format!("{remedy}, in {left} at most"))
                .print(store.json);
        }
        _ => {}
    }
    report(store, &lock, &ended, waited, held)
}

/// Says how the command went.
fn report(
    store: &StoreArguments,
    lock: &CurrentLock,
    ended: &Ended,
    waited: Duration,
    held: Duration,
) -> Result<Code, Failure> {
    if store.json {
        let report = Report {
            key: lock.key(),
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

/// The time between TERM and KILL. It must fit into what is left of a lease that was not renewed in time.
fn grace(arguments: &RunArguments) -> Result<Duration, Failure> {
    let shortest = arguments
        .max_hold
        .map_or(arguments.ttl, |most| most.min(arguments.ttl));
    let longest = shortest / 3;
    match arguments.grace {
        None => Ok(GRACE.min(longest)),
        Some(grace) if grace <= longest => Ok(grace),
        Some(grace) => Err(Failure::new(
            Code::Usage,
            format!(
                "a grace of {} is more than a third of {}, the shorter of --ttl and --max-hold: the command could not be \
                 stopped before its lease ends; give a ttl of {} or more",
                shown(grace),
                shown(shortest),
                shown(grace * 3),
            ),
        )),
    }
}

/// Takes the lock, and waits until its lease is long enough.
async fn acquire(
    locks: &LockManager,
    key: &str,
    arguments: &RunArguments,
    grace: Duration,
) -> Result<(LockGuard, CurrentLock), Failure> {
    let guard = locks.acquire(key, options(arguments)).await?;
    let lock = guard.enter(async { current() }).await?;
    long_enough(&lock, grace).await?;
    Ok((guard, lock))
}

/// The lock that the running code is under.
fn current() -> CurrentLock {
    dblock::current().expect("it is called inside of a lock")
}

/// Waits until the lease is long enough to stop the command in time: one that another process passed on is short until the
/// first renewal.
async fn long_enough(lock: &CurrentLock, grace: Duration) -> Result<(), LockError> {
    while lock.remaining() <= grace {
        tokio::select! {
            lost = lock.lost() => return Err(lost),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
    Ok(())
}

fn options(arguments: &RunArguments) -> LockOptions {
    let program = arguments.command.first().map(Path::new).and_then(Path::file_name);
    let program = program.unwrap_or(OsStr::new("")).to_string_lossy();
    // There is one in the life of the process.
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

/// Runs the command, and returns when nothing is left of its group.
async fn under(
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
        Failure::new(code, format!("{} cannot be run: {error}", program.display()))
    })?;
    supervise(lock, group, grace, signals).await
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn grace_of(arguments: &[&str]) -> Result<Duration, Failure> {
        let all = ["dblock", "run", "-k", "a"]
            .iter()
            .chain(arguments)
            .chain(&["true"]);
        match Cli::try_parse_from(all).unwrap().command {
            Command::Run(arguments) => grace(&arguments),
            _ => panic!("no run"),
        }
    }

    #[test]
    fn the_grace_fits_into_a_third_of_the_lease() {
        assert_eq!(grace_of(&[]).unwrap(), Duration::from_secs(5));
        assert_eq!(grace_of(&["--ttl=6s"]).unwrap(), Duration::from_secs(2));
        assert_eq!(grace_of(&["--max-hold=9s"]).unwrap(), Duration::from_secs(3));
        assert_eq!(grace_of(&["--grace=10s"]).unwrap(), Duration::from_secs(10));
        assert_eq!(grace_of(&["--grace=0s"]).unwrap(), Duration::ZERO);
        let refused = grace_of(&["--grace=11s"]).unwrap_err();
        assert_eq!(refused.code, Code::Usage);
    }
}
