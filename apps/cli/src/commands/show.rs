//! `dblock show`

use std::time::Duration;

use crate::cli::StoreArguments;
use crate::connect::{Missing, manager};
use crate::duration::shown;
use crate::failure::{Code, Failure};
use crate::output::{self, block, printable, width};
use crate::progress::during;
use crate::row::Row;
use crate::similar::hint;

pub(crate) async fn show(store: &StoreArguments, key: &str) -> Result<Code, Failure> {
    let row = during("asking the database", async {
        let locks = manager(store, Missing::IsAnError).await?;
        if let Some(row) = locks.admin().get(key).await? {
            return Ok(row);
        }
        let hint = hint(&locks, store, key).await?;
        let message = format!(
            "{:?} has no row: it was never locked, or its row was purged{hint}",
            store.whole(key)
        );
        Err(Failure::new(Code::No, message))
    });
    let mut row = Row::from(row.await?);
    if store.json {
        output::json(&row)?;
    } else {
        row.key = store.whole(&row.key);
        output::line(&text(&row))?;
    }
    Ok(Code::Done)
}

fn text(row: &Row) -> String {
    let length = |seconds: Option<f64>| seconds.map(|seconds| shown(Duration::from_secs_f64(seconds)));
    let kept = row
        .transaction
        .as_ref()
        .map(|transaction| transaction.text.clone());
    // By a lease.
    let held = row.remaining_seconds.is_some();
    let next = row.next.as_ref().map(|next| {
        let waiting = shown(Duration::from_secs_f64(next.waiting_seconds));
        format!("{}, waiting for {waiting}", printable(&next.holder))
    });
    let sharers = row.shared.iter().map(|sharer| match sharer.count {
        1 => printable(&sharer.holder),
        count => format!("{} ({count} times)", printable(&sharer.holder)),
    });
    let sharers: Vec<_> = sharers.collect();
    let values = [
        printable(&row.key),
        if row.revoked {
            "held, revoked"
        } else {
            row.state.word()
        }
        .to_owned(),
        kept.unwrap_or_default(),
        if held && sharers.is_empty() {
            printable(&row.holder)
        } else {
            String::new()
        },
        sharers.join(", "),
        if held {
            String::new()
        } else {
            printable(&row.holder)
        },
        length(row.held_seconds).unwrap_or_default(),
        length(row.remaining_seconds).unwrap_or_default(),
        row.fence_token.to_string(),
        if held {
            row.holds.to_string()
        } else {
            String::new()
        },
        if row.wanted && next.is_none() {
            "yes".to_owned()
        } else {
            String::new()
        },
        next.unwrap_or_default(),
    ];
    let names = [
        "key",
        "state",
        "kept by",
        "holder",
        "shared by",
        "last holder",
        "held for",
        "lease left",
        "fence token",
        "holds",
        "wanted",
        "next",
    ];
    block(names, &values, width())
}
