//! `dblock watch`: what happens to locks, one line each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::SystemTime;

use dblock::store::SharedHold;
use dblock::{InspectFilter, LockManager, LockRow};
use serde::Serialize;

use crate::cli::{StoreArguments, WatchArguments};
use crate::connect::{Missing, manager};
use crate::failure::{Code, Failure};
use crate::output::{self, printable};
use crate::progress::during;

/// The JSON of a line. Its fields are a promise: docs/cli.md lists them.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Event {
    /// By this host's clock.
    time: String,
    #[serde(rename = "event")]
    what: What,
    key: String,
    /// The one who holds it, held it, or waits.
    holder: String,
    fence_token: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Held,
    Waiting,
    Revoked,
    /// Released, or expired.
    Free,
}

impl What {
    fn word(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Waiting => "waiting",
            Self::Revoked => "revoked",
            Self::Free => "free",
        }
    }
}

type Rows = BTreeMap<String, LockRow>;

/// Runs until a signal ends it, or its reader leaves.
pub(crate) async fn watch(store: &StoreArguments, arguments: &WatchArguments) -> Result<Code, Failure> {
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    let mut known = Rows::new();
    let mut failing = false;
    loop {
        match rows(&locks, arguments).await {
            Ok(found) => {
                failing = false;
                for event in events(&known, &found) {
                    print(store, &event)?;
                }
                known = found;
            }
            // Somebody who watches wants to see the end of an outage too.
            Err(failure) if failure.code == Code::Unavailable => {
                if !std::mem::replace(&mut failing, true) {
                    failure.with_remedy("asking again until it answers").print(store);
                }
            }
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(arguments.every).await;
    }
}

async fn rows(locks: &LockManager, arguments: &WatchArguments) -> Result<Rows, Failure> {
    let filter = InspectFilter::new()
        .prefix(&arguments.prefix)
        .limit(arguments.limit + 1);
    let found = locks.admin().list(filter).await?;
    // The rest would seem to be free.
    if u32::try_from(found.len()).is_ok_and(|count| count > arguments.limit) {
        let message = format!(
            "more than {} locks are held: give a --prefix, or a larger --limit",
            arguments.limit
        );
        return Err(Failure::new(Code::Usage, message));
    }
    Ok(found
        .into_iter()
        .map(|row| (row.key.as_str().to_owned(), row))
        .collect())
}

/// The events between two looks. A change that lasted for less is not seen.
fn events(before: &Rows, now: &Rows) -> Vec<Event> {
    let mut events = Vec::new();
    for (key, row) in before.iter().filter(|(key, _)| !now.contains_key(*key)) {
        events.push(event(What::Free, key, &who(row), row.fence_token));
    }
    for (key, row) in now {
        let old = before.get(key).filter(|old| old.fence_token == row.fence_token);
        if old.is_none_or(|old| old.transaction.is_some() != row.transaction.is_some() && !row.has_lease()) {
            events.push(event(What::Held, key, &who(row), row.fence_token));
        } else if let Some(old) = old {
            let is_new = |hold: &&SharedHold| !old.live_shared().any(|known| known.lease_id == hold.lease_id);
            for hold in row.live_shared().filter(is_new) {
                events.push(event(What::Held, key, &hold.holder, row.fence_token));
            }
        }
        // What a row says of its lease means nothing when only a transaction keeps it.
        if row.revoked && row.has_lease() && !old.is_some_and(|old| old.revoked) {
            events.push(event(What::Revoked, key, &row.holders(), row.fence_token));
        }
        let waits = row.live_successor();
        let waited = old.and_then(|old| old.next.as_ref());
        if let Some(next) = waits.filter(|next| waited.is_none_or(|old| old.owner != next.owner)) {
            events.push(event(What::Waiting, key, &next.holder, row.fence_token));
        }
    }
    events
}

/// The one who holds it: what a transaction has written cannot be seen, and a row without a lease names the last
/// owner.
fn who(row: &LockRow) -> Cow<'_, str> {
    match &row.transaction {
        Some(transaction) if !row.has_lease() => Cow::Owned(transaction.to_string()),
        _ => row.holders(),
    }
}

fn event(what: What, key: &str, holder: &str, fence_token: i64) -> Event {
    Event {
        time: humantime::format_rfc3339_millis(SystemTime::now()).to_string(),
        what,
        key: key.to_owned(),
        holder: holder.to_owned(),
        fence_token,
    }
}

fn print(store: &StoreArguments, event: &Event) -> Result<(), Failure> {
    if store.json {
        output::json(event)?;
        return Ok(());
    }
    let (key, holder) = (printable(&store.whole(&event.key)), printable(&event.holder));
    let by = match event.what {
        What::Held | What::Waiting | What::Revoked => format!(" by {holder}"),
        What::Free => format!(", held by {holder} before"),
    };
    let word = event.what.word();
    output::line(&format!("{} {word:7} {key}{by}", event.time))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use dblock::store::Successor;
    use dblock::store::clock::Timestamp;
    use dblock::{Key, OpenTransaction};

    use super::*;

    fn row(key: &str, token: i64) -> LockRow {
        let mut row = LockRow::new(Key::new(None, key).unwrap(), Timestamp::from_micros(5));
        row.reentrant_count = 1;
        row.expire_at = Timestamp::from_micros(9);
        row.fence_token = token;
        row.holder = format!("host/{token}");
        row
    }

    fn rows(rows: &[LockRow]) -> Rows {
        rows.iter()
            .map(|row| (row.key.as_str().to_owned(), row.clone()))
            .collect()
    }

    fn told(before: &[LockRow], now: &[LockRow]) -> Vec<(What, String, String)> {
        let events = events(&rows(before), &rows(now));
        events
            .into_iter()
            .map(|event| (event.what, event.key, event.holder))
            .collect()
    }

    fn one(what: What, key: &str, holder: &str) -> Vec<(What, String, String)> {
        vec![(what, key.to_owned(), holder.to_owned())]
    }

    #[test]
    fn each_process_that_joins_is_told() {
        let entry = |lease, holder: &str| {
            SharedHold::new(uuid::Uuid::from_u128(lease), holder, Timestamp::from_micros(9))
        };
        let shared_by = |entries: &[SharedHold]| {
            let mut row = row("a", 1);
            row.shared = entries.to_vec();
            row
        };
        let one_inside = shared_by(&[entry(1, "host/1")]);
        let two_inside = shared_by(&[entry(1, "host/1"), entry(2, "host/2")]);
        let held = |holder| one(What::Held, "a", holder);
        assert_eq!(told(&[], std::slice::from_ref(&one_inside)), held("host/1"));
        assert_eq!(
            told(&[], std::slice::from_ref(&two_inside)),
            held("host/1 and 1 other")
        );
        let joins = told(
            std::slice::from_ref(&one_inside),
            std::slice::from_ref(&two_inside),
        );
        assert_eq!(joins, held("host/2"));
        assert_eq!(
            told(
                std::slice::from_ref(&two_inside),
                std::slice::from_ref(&one_inside)
            ),
            []
        );
        let free = told(std::slice::from_ref(&one_inside), &[]);
        assert_eq!(free, one(What::Free, "a", "host/1"));
    }

    #[test]
    fn each_change_is_told_once() {
        let old = row("a", 1);
        assert_eq!(
            told(&[], std::slice::from_ref(&old)),
            one(What::Held, "a", "host/1")
        );
        assert_eq!(told(std::slice::from_ref(&old), std::slice::from_ref(&old)), []);
        assert_eq!(
            told(std::slice::from_ref(&old), &[]),
            one(What::Free, "a", "host/1")
        );
        assert_eq!(
            told(std::slice::from_ref(&old), &[row("a", 2)]),
            one(What::Held, "a", "host/2")
        );

        let mut kept = old.clone();
        kept.reentrant_count = 0;
        kept.revoked = true;
        kept.transaction = Some(OpenTransaction::default());
        assert_eq!(
            told(&[], std::slice::from_ref(&kept)),
            one(What::Held, "a", "an open transaction")
        );
        assert_eq!(
            told(std::slice::from_ref(&kept), &[]),
            one(What::Free, "a", "an open transaction")
        );

        let mut revoked = old.clone();
        revoked.revoked = true;
        assert_eq!(
            told(std::slice::from_ref(&old), std::slice::from_ref(&revoked)),
            one(What::Revoked, "a", "host/1")
        );
        assert_eq!(
            told(std::slice::from_ref(&revoked), std::slice::from_ref(&revoked)),
            []
        );

        let mut wanted = old.clone();
        let ids = (uuid::Uuid::nil(), uuid::Uuid::nil());
        wanted.next = Some(Successor {
            lease_id: ids.0,
            owner: ids.1,
            holder: "host/9".into(),
            ttl: std::time::Duration::from_secs(1),
            spare_tokens: 0,
            since: Timestamp::from_micros(1),
            until: Timestamp::from_micros(9),
            limit: None,
        });
        assert_eq!(
            told(std::slice::from_ref(&old), std::slice::from_ref(&wanted)),
            one(What::Waiting, "a", "host/9")
        );
        assert_eq!(
            told(std::slice::from_ref(&wanted), std::slice::from_ref(&wanted)),
            []
        );
    }
}
