//! `dblock ls`

use dblock::{InspectFilter, LockRow};
use serde::Serialize;

use crate::cli::{ListArguments, StoreArguments};
use crate::connect::{Missing, manager};
use crate::duration::shown;
use crate::failure::{Code, Failure};
use crate::output::{self, printable};
use crate::progress::during;
use crate::row::Row;

#[derive(Debug, Serialize)]
struct Answer {
    locks: Vec<Row>,
    /// There are more rows than `--limit`.
    truncated: bool,
}

pub(crate) async fn list(store: &StoreArguments, arguments: &ListArguments) -> Result<Code, Failure> {
    let mut answer = during("asking the database", rows(store, arguments)).await?;
    if store.json {
        output::json(&answer)?;
    } else if answer.locks.is_empty() {
        output::told_to_a_person(if arguments.all {
            "no such key"
        } else {
            "no key is held"
        });
    } else {
        for row in &mut answer.locks {
            row.key = store.whole(&row.key);
        }
        let rows: Vec<_> = answer.locks.iter().map(columns).collect();
        output::table(["KEY", "STATE", "FOR", "LEFT", "HOLDER", "NEXT"], &rows)?;
    }
    if answer.truncated && !store.json {
        output::told(&"dblock: there are more; --limit says how many to list, --prefix which");
    }
    Ok(Code::Done)
}

async fn rows(store: &StoreArguments, arguments: &ListArguments) -> Result<Answer, Failure> {
    let locks = manager(store, Missing::IsAnError).await?;
    let mut filter = InspectFilter::new()
        .prefix(&arguments.prefix)
        .limit(arguments.limit + 1);
    filter = if arguments.all {
        filter.include_free()
    } else {
        filter.urgent_first()
    };
    let mut found = locks.admin().list(filter).await?;
    let limit = usize::try_from(arguments.limit).unwrap_or(usize::MAX);
    let truncated = found.len() > limit;
    found.truncate(limit);
    let deadlocks = LockRow::deadlocks(&found);
    let mut locks: Vec<Row> = found.into_iter().map(Row::from).collect();
    for (row, deadlock) in locks.iter_mut().zip(deadlocks) {
        row.deadlock = Some(deadlock);
    }
    Ok(Answer { locks, truncated })
}

fn columns(row: &Row) -> [String; 6] {
    let length = |seconds: Option<f64>| {
        seconds.map_or_else(String::new, |seconds| {
            shown(std::time::Duration::from_secs_f64(seconds))
        })
    };
    let state = if row.revoked { "revoked" } else { row.state.word() };
    let next = match &row.next {
        Some(next) if row.deadlock == Some(true) => format!("{} (deadlock)", printable(&next.holder)),
        Some(next) => printable(&next.holder),
        None if row.wanted => "wanted".to_owned(),
        None => String::new(),
    };
    [
        printable(&row.key),
        state.to_owned(),
        length(row.held_seconds),
        length(row.remaining_seconds),
        // Without a lease the row names the last owner.
        row.transaction
            .as_ref()
            .filter(|_| row.remaining_seconds.is_none())
            .map_or_else(|| printable(&row.holders), |transaction| transaction.text.clone()),
        next,
    ]
}
