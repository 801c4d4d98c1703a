//! The page of one key: all that its row tells, and its record.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::response::{AppendHeaders, IntoResponse as _, Response};
use dblock::store::clock::Timestamp;
use dblock::store::{RecordFilter, StoreErrorKind};
use dblock::{LockError, LockRow, OpenTransaction};
use dblock_core::printable::printable;
use maud::{Markup, html};
use serde::Deserialize;

use super::list::{state, waiting};
use super::{Failure, Place, live, records, whole};
use crate::done;
use crate::page::Page;
use crate::text::{address, foreign, length, moment};

/// The parameters of the address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
pub(crate) struct Asked {
    /// Without the namespace.
    #[serde(default)]
    pub(crate) key: String,
    /// The action that was just done: see `actions.rs`.
    #[serde(default)]
    done: String,
}

pub(crate) async fn show(
    State(page): State<Arc<Page>>,
    Query(asked): Query<Asked>,
    request: Parts,
) -> Result<Response, Failure> {
    if asked.key.is_empty() {
        return Err(Failure::mistake(
            "Which key? This address names none. Choose one from the list of all keys.",
        ));
    }
    let news = match &*asked.done {
        "revoked" => {
            "It is revoked. Its holder learns of it at its next renewal, and has until the end of its lease."
        }
        "freed" => "It is free. The former holder learns of it at its next renewal.",
        "not-held" => "Nothing was done: nobody held it any more.",
        _ => "",
    };
    let is_news = !news.is_empty() && done::is_new(&request);
    let (held, fragment) = look(&page, &asked).await?;
    let confirm = |action| address("confirm", &[("action", action), ("key", &asked.key)]);
    let body = html! {
        @if is_news { p.done role="status" { (news) } }
        (live(&address("key-events", &[("key", &asked.key)]), &fragment))
        @if page.access.allows(&request) {
            // The script shows and hides them as the live part changes.
            p.actions hidden[!held] {
                a.button href=(confirm("revoke")) { "Revoke…" }
                " "
                a.button.danger href=(confirm("force-release")) { "Free by force…" }
            }
        } @else {
            p.about {
                "Read-only: here you cannot revoke or free locks. " code { "dblock serve --access manage" }
                " allows that; in a service, its " code { "Access" } " does."
            }
        }
    };
    let answer = whole(&page, Place::Elsewhere, &asked.key, &body);
    let told = AppendHeaders(is_news.then_some((SET_COOKIE, done::UNSET)));
    Ok((told, answer).into_response())
}

pub(crate) async fn fragment(page: &Page, asked: &Asked) -> Result<Markup, LockError> {
    let (_, fragment) = look(page, asked).await?;
    Ok(fragment)
}

/// Whether an operator can end the lock, and what is shown of the key.
async fn look(page: &Page, asked: &Asked) -> Result<(bool, Markup), LockError> {
    let row = page.locks.admin().get(&asked.key).await?;
    let record = record(page, &asked.key).await;
    let shown = html! {
        @match &row {
            Some(row) => (facts(row)),
            None => p { "This key has no row: it was never locked, or its row was purged." },
        }
        (record)
    };
    let can_be_freed = |row: &LockRow| row.is_held() && row.transaction.is_none();
    Ok((row.as_ref().is_some_and(can_be_freed), shown))
}

fn facts(row: &LockRow) -> Markup {
    let held = row.has_lease();
    let ago = |at: Timestamp| html! { (moment(at)) ", " (length(row.now.since(at))) " ago" };
    let given = |at: Timestamp| html! { @if at > Timestamp::EPOCH { (moment(at)) } };
    let facts: [(&str, Markup); 13] = [
        ("State", html! { span.state.(state(row)) { (state(row)) } }),
        (
            "Kept by",
            html! { @if let Some(transaction) = &row.transaction { (kept_by(transaction, row)) } },
        ),
        (
            if held { "Holder" } else { "Last holder" },
            html! { @if !row.is_shared() { (foreign(&row.holder)) } },
        ),
        ("Shared by", shared_by(row)),
        ("Owner", html! { @if !row.is_shared() { (row.owner) } }),
        (
            if held { "Held since" } else { "Last granted" },
            ago(row.acquired_at),
        ),
        (
            if held {
                "Lease ends"
            } else {
                "Lease ended, or would have"
            },
            html! { (moment(row.expire_at)) @if held { ", in " (length(row.expire_at.since(row.now))) } },
        ),
        (
            if row.is_shared() { "Inside" } else { "Holds" },
            html! { @if held { (row.reentrant_count) } },
        ),
        ("Waiting", waiting(row)),
        ("Waited for until", given(row.wanted_until)),
        ("Fence token", html! { (row.fence_token) }),
        ("Largest token given", html! { (row.fence_ceiling) }),
        ("The store's clock", moment(row.now)),
    ];
    html! {
        dl {
            @for (name, value) in facts.iter().filter(|(_, value)| !value.0.is_empty()) {
                div { dt { (name) } dd { (value) } }
            }
        }
    }
}

/// Each process that shares the lock.
fn shared_by(row: &LockRow) -> Markup {
    html! {
        @for (index, hold) in row.live_shared().enumerate() {
            @if index > 0 { br; }
            (foreign(&hold.holder))
            @if hold.count > 1 { ", " (hold.count) " times" }
            ", lease ends in " (length(hold.expire_at.since(row.now)))
        }
    }
}

/// What an operator can do about it.
fn kept_by(transaction: &OpenTransaction, row: &LockRow) -> Markup {
    html! {
        (foreign(&transaction.to_string()))
        @if let Some(since) = transaction.since { ", for " (length(row.now.since(since))) }
        ". It alone can free the key: it must end, or its session must be ended in the database."
    }
}

/// The record of the key's run, if there is one.
async fn record(page: &Page, key: &str) -> Markup {
    // The keys that begin with this one come after it.
    let found = page
        .locks
        .admin()
        .records(RecordFilter::new().prefix(key).limit(1))
        .await;
    match found {
        Ok(found) => html! {
            @if let Some(record) = found.iter().find(|record| record.key.as_str() == key) {
                h2 { "Run" }
                (records::facts(record))
                (records::runbook(page, key, record))
            }
        },
        // A service that runs nothing once needs neither the table nor rights on it.
        Err(error) if is_without_records(&error) => html! {},
        Err(error) => {
            let failure = Failure::from(error);
            html! { p role="alert" { "The record of its run cannot be read: " (printable(failure.text())) } }
        }
    }
}

fn is_without_records(error: &LockError) -> bool {
    let kinds = [
        StoreErrorKind::Unsupported,
        StoreErrorKind::Schema,
        StoreErrorKind::Refused,
    ];
    matches!(error, LockError::Store { source, .. } if kinds.contains(&source.kind()))
}
