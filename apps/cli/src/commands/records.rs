//! `dblock records`: what `run_once` remembers.

use dblock::store::{self as records, Record, RecordFilter, RecordState};
use dblock::{LockManager, Resolution};
use serde::Serialize;
use serde_json::{Value, json};

use super::operators::confirm;
use crate::cli::{RecordsArguments, RecordsCommand, ResolveArguments, RunState, StoreArguments};
use crate::connect::{Missing, manager};
use crate::duration::shown;
use crate::failure::{Code, Failure};
use crate::output::{self, block, printable, width};
use crate::progress::during;
use crate::remedy::with_options;
use crate::row::time;
use crate::similar::without_namespace;

/// The JSON of a record. Its fields are a promise: docs/cli.md lists them.
#[derive(Debug, Serialize)]
struct Row {
    key: String,
    state: &'static str,
    /// The same together with the lock: `running`, `crashed`, `succeeded` or `failed`.
    run_state: &'static str,
    attempts: u32,
    /// The process that made the last attempt.
    holder: String,
    fence_token: i64,
    /// By the store's clock, in RFC 3339.
    started_at: String,
    /// `None` while it is processing.
    finished_at: Option<String>,
    remembered_until: Option<String>,
}

/// A record with what may be secret.
#[derive(Debug, Serialize)]
struct Whole {
    #[serde(flatten)]
    row: Row,
    /// Somebody holds the lock of its key.
    lock_held: bool,
    result: Option<Value>,
    error: Option<String>,
}

impl From<&Record> for Row {
    fn from(record: &Record) -> Self {
        let ended = record.state != RecordState::Processing;
        Self {
            key: record.key.as_str().to_owned(),
            state: record.state.as_str(),
            run_state: record.run_state().as_str(),
            attempts: record.attempts,
            holder: record.holder.clone(),
            fence_token: record.fence_token,
            started_at: time(record.started_at),
            finished_at: ended.then(|| time(record.finished_at)),
            remembered_until: ended.then(|| time(record.keep_until)),
        }
    }
}

fn of_state(filter: RecordFilter, state: RunState) -> RecordFilter {
    match state {
        RunState::Processing => filter.state(RecordState::Processing),
        RunState::Running => filter.run_state(records::RunState::Running),
        RunState::Crashed => filter.run_state(records::RunState::Crashed),
        RunState::Succeeded => filter.run_state(records::RunState::Succeeded),
        RunState::Failed => filter.run_state(records::RunState::Failed),
    }
}

pub(crate) async fn records(store: &StoreArguments, command: &RecordsCommand) -> Result<Code, Failure> {
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    match command {
        RecordsCommand::List(arguments) => list(store, &locks, arguments).await,
        RecordsCommand::Show { key } => show(store, &locks, key).await,
        RecordsCommand::Forget { key, yes } => forget(store, &locks, key, *yes).await,
        RecordsCommand::Resolve(arguments) => resolve(store, &locks, arguments).await,
    }
}

async fn list(
    store: &StoreArguments,
    locks: &LockManager,
    arguments: &RecordsArguments,
) -> Result<Code, Failure> {
    let mut filter = RecordFilter::new()
        .prefix(&arguments.prefix)
        .limit(arguments.limit + 1);
    if let Some(state) = arguments.state {
        filter = of_state(filter, state);
    }
    let mut found = during("asking the database", locks.admin().records(filter)).await?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let truncated = found.len() > limit;
    found.truncate(limit);
    if store.json {
        let rows: Vec<_> = found.iter().map(Row::from).collect();
        output::json(&json!({"records": rows, "truncated": truncated}))?;
    } else if found.is_empty() {
        output::told_to_a_person("no such record");
    } else {
        let rows: Vec<_> = found.iter().map(|record| columns(store, record)).collect();
        output::table(["KEY", "STATE", "BEGAN", "ATTEMPTS", "HOLDER"], &rows)?;
    }
    if truncated && !store.json {
        output::told(&"dblock: there are more; --limit says how many to list, --prefix which");
    }
    if !store.json
        && found
            .iter()
            .any(|record| record.run_state() == records::RunState::Crashed)
    {
        let told = "what has crashed is in doubt where on_crash is \"stop\", and runs again elsewhere: dblock records show KEY";
        output::told_to_a_person(&with_options(told, store));
    }
    Ok(Code::Done)
}

fn columns(store: &StoreArguments, record: &Record) -> [String; 5] {
    let ago = record.now.since(record.started_at);
    [
        printable(&store.whole(record.key.as_str())),
        record.run_state().as_str().to_owned(),
        format!("{} ago", shown(ago)),
        record.attempts.to_string(),
        printable(&record.holder),
    ]
}

async fn show(store: &StoreArguments, locks: &LockManager, key: &str) -> Result<Code, Failure> {
    let (found, lock_held) = during("asking the database", async {
        let found = locks.admin().record::<Value>(key).await?;
        Ok::<_, Failure>((found, locks.admin().is_locked(key).await?))
    })
    .await?;
    let Some(found) = found else {
        return Err(nothing(store, key));
    };
    let mut whole = Whole {
        row: Row::from(&found.record),
        lock_held,
        result: found.result,
        error: found.record.error,
    };
    if store.json {
        output::json(&whole)?;
    } else {
        whole.row.key = store.whole(&whole.row.key);
        output::line(&text(&whole, store))?;
    }
    Ok(Code::Done)
}

fn text(whole: &Whole, store: &StoreArguments) -> String {
    let row = &whole.row;
    let state = match row.run_state {
        "crashed" => with_options(
            "crashed: find out what it did, then decide by `dblock records resolve`",
            store,
        ),
        state => state.to_owned(),
    };
    let values = [
        printable(&row.key),
        state,
        row.attempts.to_string(),
        printable(&row.holder),
        row.fence_token.to_string(),
        row.started_at.clone(),
        row.finished_at.clone().unwrap_or_default(),
        row.remembered_until.clone().unwrap_or_default(),
        whole
            .result
            .as_ref()
            .map_or_else(String::new, |result| printable(&result.to_string())),
        whole.error.as_deref().map_or_else(String::new, printable),
    ];
    let names = [
        "key",
        "state",
        "attempts",
        "last attempt by",
        "fence token",
        "began",
        "ended",
        "remembered until",
        "result",
        "error",
    ];
    block(names, &values, width())
}

async fn forget(store: &StoreArguments, locks: &LockManager, key: &str, yes: bool) -> Result<Code, Failure> {
    let Some(record) = locks
        .admin()
        .record::<Value>(key)
        .await?
        .map(|found| found.record)
    else {
        return Err(nothing(store, key));
    };
    if record.state == RecordState::Processing {
        let message = format!(
            "the run {:?} is processing, or crashed: wait for its end, or decide about it by `dblock records resolve`",
            store.whole(key)
        );
        return Err(Failure::new(Code::No, message));
    }
    let question = format!(
        "{:?} {} (last attempt by {}). Forget that, so that the next call runs it again?",
        store.whole(key),
        record.state.as_str(),
        printable(&record.holder),
    );
    confirm(&question, yes)?;
    let forgotten = during("deleting the record", locks.admin().forget(&record)).await?;
    decided(store, key, "forgotten", forgotten)
}

async fn resolve(
    store: &StoreArguments,
    locks: &LockManager,
    arguments: &ResolveArguments,
) -> Result<Code, Failure> {
    let key = &arguments.key;
    let value = arguments.succeeded.as_deref().map(result).transpose()?;
    let found = locks.admin().record::<Value>(key).await?;
    let wanted = |record: &Record| arguments.replace || record.state != RecordState::Succeeded;
    let Some(found) = found.filter(|found| wanted(&found.record)) else {
        let (whole, hint) = (store.whole(key), without_namespace(store, key));
        let message = format!(
            "{whole:?} has no record of a run that crashed or failed{hint}; `dblock records show` says what there is"
        );
        return Err(Failure::new(Code::No, message));
    };
    let (record, remember) = (&found.record, arguments.remember);
    let (resolution, becomes) = match &value {
        None => (
            Resolution::RunAgain,
            "Let the next call run it again, as its first attempt?".to_owned(),
        ),
        Some(value) if record.state == RecordState::Succeeded => {
            let old = found.result.unwrap_or_default().to_string();
            let becomes = format!("Its result is {}. Replace that?", printable(&old));
            (Resolution::corrected(value, remember)?, becomes)
        }
        Some(value) => (
            Resolution::succeeded(value, remember)?,
            "Record that it has succeeded with this result?".to_owned(),
        ),
    };
    let question = format!(
        "{:?} is {} since {}, attempt {} by {}. {becomes}",
        store.whole(key),
        record.state.as_str(),
        time(record.started_at),
        record.attempts,
        printable(&record.holder),
    );
    confirm(&question, arguments.yes)?;
    let resolved = during("writing the record", locks.admin().resolve(record, resolution)).await?;
    decided(store, key, "resolved", resolved)
}

/// The result that a person has typed.
fn result(json: &str) -> Result<Value, Failure> {
    serde_json::from_str(json).map_err(|error| {
        let message = format!("the result is not JSON: {error}; text needs quotes, as in '\"receipt 7\"'");
        Failure::new(Code::Usage, message)
    })
}

/// What became of a decision about the record that was shown.
fn decided(store: &StoreArguments, key: &str, what: &str, done: bool) -> Result<Code, Failure> {
    let whole = store.whole(key);
    if !done {
        let message = format!(
            "nothing was done: the record of {whole:?} has changed meanwhile; `dblock records show` says what there is"
        );
        return Err(Failure::new(Code::No, message));
    }
    if store.json {
        output::json(&json!({"key": key, what: done}))?;
    } else {
        output::line(&format!("{whole:?} is {what}"))?;
    }
    Ok(Code::Done)
}

fn nothing(store: &StoreArguments, key: &str) -> Failure {
    let (whole, hint) = (store.whole(key), without_namespace(store, key));
    let message =
        format!("nothing is remembered of {whole:?}: it never ran, or its outcome is forgotten{hint}");
    Failure::new(Code::No, message)
}
