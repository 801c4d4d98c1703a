//! The list of keys. Held ones are ordered by how much they matter, all of them by key.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Html;
use dblock::store::clock::Timestamp;
use dblock::{InspectFilter, Key, LockError, LockRow, RowPosition};
use maud::{Markup, html};
use serde::Deserialize;

use super::{Failure, Place, live, whole};
use crate::page::Page;
use crate::text::{address, foreign, length};

/// Rows of a page.
const ROWS: usize = 50;

/// Rows that are read together: to count them, and to look for a holder.
const PART: u32 = 1_000;

/// The most rows that are searched for a holder.
const SEARCHED: usize = 20_000;

/// The parameters of the address. The last three are the position after which the list goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    prefix: String,
    /// A part of the holder.
    holder: String,
    /// `all`, or else what is held.
    show: String,
    rank: u8,
    at: i64,
    after: String,
}

impl Asked {
    fn all(&self) -> bool {
        self.show == "all"
    }

    fn filter(&self) -> InspectFilter {
        let filter = InspectFilter::new().prefix(&self.prefix).limit(PART);
        let filter = if self.all() {
            filter.include_free()
        } else {
            filter.urgent_first()
        };
        match Key::new(None, &self.after) {
            Ok(key) => filter.after(RowPosition {
                rank: self.rank,
                acquired_at: Timestamp::from_micros(self.at),
                key,
            }),
            // The first page.
            Err(_) => filter,
        }
    }

    /// The address of the page behind `last`.
    fn next(&self, last: &LockRow) -> String {
        let RowPosition {
            rank,
            acquired_at,
            key,
        } = last.position();
        let (rank, at) = (rank.to_string(), acquired_at.as_micros().to_string());
        let position = [("rank", &*rank), ("at", &*at), ("after", key.as_str())];
        address("list", &[&self.first()[..], &position].concat())
    }

    fn first(&self) -> [(&str, &str); 3] {
        [
            ("prefix", &self.prefix),
            ("holder", &self.holder),
            ("show", &self.show),
        ]
    }

    fn events(&self) -> String {
        let (rank, at) = (self.rank.to_string(), self.at.to_string());
        let position = [("rank", &*rank), ("at", &*at), ("after", &*self.after)];
        let position = if self.after.is_empty() { &[][..] } else { &position };
        address("list-events", &[&self.first()[..], position].concat())
    }
}

pub(crate) async fn show(
    State(page): State<Arc<Page>>,
    Query(asked): Query<Asked>,
) -> Result<Html<String>, Failure> {
    let (place, title) = if asked.all() {
        (Place::All, "All keys")
    } else {
        (Place::Held, "Held locks")
    };
    let body = html! {
        form role="search" action="list" {
            label for="prefix" { "Keys that begin with" }
            " " input #prefix name="prefix" type="search" value=(asked.prefix) maxlength="255" autocomplete="off" spellcheck="false";
            " " label for="holder" { "Holder" }
            " " input #holder name="holder" type="search" value=(asked.holder) maxlength="255" autocomplete="off" spellcheck="false" placeholder="any part";
            @if asked.all() { input type="hidden" name="show" value="all"; }
            " " button { "Show" }
        }
        (live(&asked.events(), &fragment(&page, &asked).await?))
    };
    Ok(whole(&page, place, title, &body))
}

pub(crate) async fn fragment(page: &Page, asked: &Asked) -> Result<Markup, LockError> {
    let Found { mut rows, complete } = find(page, asked).await?;
    let count = rows.len();
    rows.truncate(ROWS);
    let next = rows.last().filter(|_| count > ROWS).map(|last| asked.next(last));
    Ok(html! {
        @if rows.is_empty() {
            p { "There is " @if asked.all() { "no such key." } @else { "no such lock: nobody holds one." } }
        } @else {
            (table(asked, &rows, &counted(asked, count, complete)))
        }
        @if !complete && count <= ROWS { p role="alert" { "Only the first " (SEARCHED) " rows were searched. Give more of the key." } }
        p.pages {
            @if !asked.after.is_empty() { a href=(address("list", &asked.first())) { "First page" } " " }
            @if let Some(next) = next { a href=(next) rel="next" { "Next page" } }
        }
    })
}

/// What was found from the beginning of the page on.
struct Found {
    rows: Vec<LockRow>,
    /// There are no others.
    complete: bool,
}

/// Reads more than a page, to count them. Rows of other holders are skipped.
async fn find(page: &Page, asked: &Asked) -> Result<Found, LockError> {
    let (mut rows, mut read, mut filter) = (Vec::new(), 0, asked.filter());
    loop {
        let part = page.locks.admin().list(filter.clone()).await?;
        read += part.len();
        let last = part.last().map(LockRow::position);
        let complete = part.len() < usize::try_from(PART).unwrap_or(usize::MAX);
        rows.extend(part.into_iter().filter(|row| is_by(row, &asked.holder)));
        let enough = asked.holder.is_empty() || rows.len() > ROWS || read >= SEARCHED;
        match last {
            Some(last) if !complete && !enough => filter = filter.after(last),
            _ => return Ok(Found { rows, complete }),
        }
    }
}

/// Whether its holder, or one of those who share it, has this in its name.
fn is_by(row: &LockRow, part: &str) -> bool {
    if row.is_shared() {
        row.live_shared().any(|hold| hold.holder.contains(part))
    } else {
        row.holder.contains(part)
    }
}

/// How many there are; nothing on a later page.
fn counted(asked: &Asked, count: usize, complete: bool) -> String {
    let what = match (asked.all(), count) {
        (true, 1) => "key",
        (true, _) => "keys",
        (false, 1) => "held lock",
        (false, _) => "held locks",
    };
    match (asked.after.is_empty(), complete) {
        (false, _) => String::new(),
        (true, true) => format!("{count} {what}. "),
        (true, false) => format!("{count} {what} or more. "),
    }
}

const COLUMNS: [&str; 7] = [
    "Key",
    "State",
    "Held for",
    "Lease left",
    "Holder",
    "Waiting",
    "Fence token",
];

/// The roles are said because a table that is laid out in blocks, as on a phone, loses them.
fn table(asked: &Asked, rows: &[LockRow], count: &str) -> Markup {
    let order = if asked.all() {
        "Ordered by key."
    } else {
        "What somebody waits for comes first, then the longest held."
    };
    let deadlocks = LockRow::deadlocks(rows);
    html! {
        table role="table" {
            caption { (count) (order) }
            thead role="rowgroup" {
                tr role="row" { @for name in COLUMNS { th scope="col" role="columnheader" { (name) } } }
            }
            tbody role="rowgroup" { @for (row, in_deadlock) in rows.iter().zip(deadlocks) { (line(row, in_deadlock)) } }
        }
    }
}

fn line(row: &LockRow, in_deadlock: bool) -> Markup {
    let key = row.key.as_str();
    let held = row.has_lease();
    let since = row.transaction.as_ref().and_then(|transaction| transaction.since);
    let since = held.then_some(row.acquired_at).or(since);
    let values = [
        html! { span.state.(state(row)) { (state(row)) } },
        html! { @if let Some(since) = since { (length(row.now.since(since))) } },
        html! { @if held { (length(row.expire_at.since(row.now))) } },
        html! {
            @if let Some(transaction) = row.transaction.as_ref().filter(|_| !held) { (foreign(&transaction.to_string())) }
            @else { (foreign(&row.holders_in_short())) }
        },
        html! { (waiting(row)) @if in_deadlock { " (deadlock)" } },
        html! { (row.fence_token) },
    ];
    html! {
        tr role="row" {
            th scope="row" role="rowheader" {
                a href=(address("key", &[("key", key)])) { (foreign(key)) }
            }
            @for (name, value) in COLUMNS[1..].iter().zip(values) {
                td role="cell" data-name=(name) { (value) }
            }
        }
    }
}

pub(super) fn state(row: &LockRow) -> &'static str {
    match (row.is_held(), row.revoked && row.has_lease(), row.reentrant_count) {
        (true, true, _) => "revoked",
        (true, false, _) => "held",
        (false, _, 0) => "free",
        (false, ..) => "expired",
    }
}

/// The process that gets the lock next. The row names one; others may wait behind it.
pub(super) fn waiting(row: &LockRow) -> Markup {
    html! {
        @if let Some(next) = row.live_successor() {
            (foreign(&next.holder)) " next, for " (length(row.now.since(next.since)))
        } @else if row.is_wanted() {
            "somebody"
        }
    }
}
