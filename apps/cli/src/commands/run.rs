//! `dblock run`: a command under a lock.
//!
//! The command has a process group of its own. When the lease is about to end, or an operator revoked it, the
//! group gets TERM, and KILL after the grace and before the local deadline: until then nobody else can have
//! the lock.

mod group;
mod helper;
pub(crate) mod launcher;
mod once;
mod signals;
mod supervise;
mod terminal;
mod under;
pub(crate) mod watchdog;

use std::time::{Duration, Instant};

use dblock::{CurrentLock, LockError, LockGuard, LockManager, RunOptions};

use self::signals::Signals;
use self::supervise::Ended;
use self::terminal::Terminal;
use self::under::{current, long_enough, options, report, under};
use crate::cli::{RunArguments, StoreArguments};
use crate::connect::{Missing, manager};
use crate::duration::shown;
use crate::failure::{Code, Failure};
use crate::output::printable;
use crate::progress::{during, during_seen};

/// The grace where none is given and the lease is long enough.
const GRACE: Duration = Duration::from_secs(5);

/// A store that has answered within this time answers now: a release that others delay is asked for each second at least.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

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
    leave(&locks, arguments.ttl, signals).await;
    code
}

/// The store must still be told what was given up, such as a place in the queue. While it answers, the release of a lock is
/// tried until its lease ends: others may have the row locked, or be faster.
async fn leave(locks: &LockManager, ttl: Duration, signals: &mut Signals) {
    let answers = || {
        let last = locks.health().last_success;
        last.is_some_and(|ago| ago < ANSWERS_WITHIN)
    };
    let falls_silent = async {
        while answers() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    if locks.health().pending_releases > 0 {
        tokio::select! {
            biased;
            _ = signals.ending() => {}
            () = falls_silent => {}
            () = during("waiting until the lock is released", locks.shutdown(ttl)) => return,
        }
    }
    locks.shutdown(Duration::ZERO).await;
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
        taken = during_seen(&waiting, async || holder(locks, key).await, acquire(locks, key, arguments, grace)) => match taken {
            Err(busy) if busy.code == Code::Busy => return Err(busy.with(Code::BusyAs(arguments.busy_code))),
            taken => taken?,
        },
    };
    let (waited, entered) = (since.elapsed(), Instant::now());
    let ended = under(&lock, arguments, grace, signals).await;
    let held = entered.elapsed();
    let released = guard.release().await;
    let (ended, unconfirmed) = at_the_release(ended?, released, arguments.ttl);
    report(store, &lock, &ended, unconfirmed, waited, held)
}

/// How the command ended, now that the row was asked, and what is to be said when the release was not
/// confirmed.
fn at_the_release(ended: Ended, released: Result<(), LockError>, ttl: Duration) -> (Ended, Option<Failure>) {
    match (ended, released) {
        // Nothing was done without the lock.
        (ended @ (Ended::Stopped(_) | Ended::NotStarted(_)), Err(error)) if error.is_lost() => (ended, None),
        // It was freed by force since the last renewal: somebody else may have had it beside the command.
        (Ended::Exited(_) | Ended::Killed(_), Err(error)) if error.is_lost() => (Ended::Late(error), None),
        (ended, Err(error)) => {
            let remedy = "the command has ended, and the lock is free when its lease has ended";
            let failure = Failure::from(error).with_remedy(&format!("{remedy}, in {} at most", shown(ttl)));
            (ended, Some(failure))
        }
        (ended, Ok(())) => (ended, None),
    }
}

/// The holder of the lock, for a person who waits for it.
async fn holder(locks: &LockManager, key: &str) -> Option<String> {
    let row = locks.admin().get(key).await.ok()??;
    if let Some(transaction) = row.transaction.as_ref().filter(|_| !row.has_lease()) {
        return Some(format!(", held by {transaction}"));
    }
    row.is_held()
        .then(|| format!(", held by {}", printable(&row.holders())))
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
                 stopped before its lease ends; give a shorter --grace, or {} or more for both",
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
    let guard = locks.lock(key).options(&options(arguments)).acquire().await?;
    let lock = guard.enter(async { current() }).await?;
    long_enough(&lock, grace).await?;
    Ok((guard, lock))
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
