//! `dblock revoke`, `force-release`, `purge` and `migrate`.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use dblock::store::StoreErrorKind;
use dblock::{LockError, LockManager, LockRow};
use serde_json::json;

use crate::cli::StoreArguments;
use crate::connect::{Missing, lazy_manager, manager};
use crate::duration::shown;
use crate::failure::{Code, Failure};
use crate::output;
use crate::progress::during;
use crate::similar::hint;

pub(crate) async fn revoke(store: &StoreArguments, key: &str) -> Result<Code, Failure> {
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    let was_held = during("revoking the lock", locks.admin().revoke(key))
        .await
        .map_err(of_an_action)?;
    let done = "is revoked: its holder learns of it at its next renewal, and has until the end of its lease";
    answer(store, &locks, key, was_held.then_some(done)).await
}

pub(crate) async fn force_release(store: &StoreArguments, key: &str, yes: bool) -> Result<Code, Failure> {
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    let held = async || Ok::<_, Failure>(locks.admin().get(key).await?.filter(LockRow::is_held));
    if !yes {
        let Some(shown) = held().await? else {
            return answer(store, &locks, key, None).await;
        };
        let whole = store.whole(key);
        if let Some(transaction) = &shown.transaction {
            let message = format!(
                "{whole:?} is kept by {transaction}, which alone can free it: end its session, or wait"
            );
            return Err(Failure::new(Code::Busy, message));
        }
        let holder = output::printable(&shown.holders());
        let goes_on = if shown.is_shared() {
            "all of whom go on until their next renewals: then others hold the lock beside them"
        } else {
            "which goes on until its next renewal: then two hold the lock"
        };
        let question = format!("{whole:?} is held by {holder}, {goes_on}. Free it?");
        confirm(&question, yes)?;
        // The answer may come late, and it is about the holder that was shown.
        if let Some(other) = held().await?.filter(|row| row.fence_token != shown.fence_token) {
            let holder = output::printable(&other.holders());
            let message = format!("nothing was done: {whole:?} is held by another owner by now, {holder}");
            return Err(Failure::new(Code::No, message));
        }
    }
    let was_held = during("freeing the lock", locks.admin().force_release(key))
        .await
        .map_err(of_an_action)?;
    answer(store, &locks, key, was_held.then_some("is free")).await
}

/// An open transaction keeps the row: that is no failure of the database's.
fn of_an_action(error: LockError) -> Failure {
    let is_kept =
        matches!(&error, LockError::Store { source, .. } if source.kind() == StoreErrorKind::Conflict);
    let failure = Failure::from(error);
    if is_kept {
        failure.with(Code::Busy)
    } else {
        failure
    }
}

/// Prints the answer: `done` says what was done, and is `None` when the lock was not held.
async fn answer(
    store: &StoreArguments,
    locks: &LockManager,
    key: &str,
    done: Option<&str>,
) -> Result<Code, Failure> {
    let whole = store.whole(key);
    if store.json {
        output::json(&json!({"key": key, "was_held": done.is_some()}))?;
    } else if let Some(done) = done {
        output::line(&format!("{whole:?} {done}"))?;
    } else {
        let hint = match during("looking for the key", locks.admin().get(key)).await? {
            Some(_) => String::new(),
            None => hint(locks, store, key).await?,
        };
        output::line(&format!("{whole:?} is not held{hint}"))?;
    }
    Ok(if done.is_some() { Code::Done } else { Code::No })
}

pub(crate) async fn purge(store: &StoreArguments, idle: Duration, yes: bool) -> Result<Code, Failure> {
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    confirm(
        &format!(
            "Delete the rows of {} that nobody has used for {}?",
            store.table,
            shown(idle)
        ),
        yes,
    )?;
    let deleted = during("deleting rows", locks.admin().purge(idle)).await?;
    if store.json {
        output::json(&json!({"deleted": deleted}))?;
    } else {
        output::line(&format!("{deleted} rows deleted"))?;
    }
    Ok(Code::Done)
}

pub(crate) async fn migrate(store: &StoreArguments) -> Result<Code, Failure> {
    let locks = lazy_manager(store, Missing::AsTheLibrary)?;
    during("creating or upgrading the tables", locks.admin().migrate()).await?;
    if store.json {
        output::json(&json!({"table": store.table, "migrated": true}))?;
    } else {
        output::line(&format!(
            "the table {} is there, and fits this version",
            store.table
        ))?;
    }
    Ok(Code::Done)
}

/// Asks a person. Where there is none, the answer must be among the arguments.
pub(super) fn confirm(question: &str, yes: bool) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let message = format!("{question} Nobody can be asked: give --yes");
        return Err(Failure::new(Code::Usage, message));
    }
    let mut err = anstream::stderr().lock();
    write!(err, "{question} [y/N] ")?;
    err.flush()?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Code::No, "nothing was done"))
}
