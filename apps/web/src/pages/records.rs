//! The records of `run_once`: what ran, is running, or was interrupted. Results and errors may be secret, and
//! are not shown.

use std::sync::Arc;

use axum::extract::{Query, State};
use axum::response::Html;
use dblock::LockError;
use dblock::store::{Record, RecordFilter, RecordState, RunState};
use maud::{Markup, html};
use serde::Deserialize;

use super::{Failure, Place, live, whole};
use crate::page::Page;
use crate::text::{address, foreign, length, moment};
use dblock_core::printable::printable;

/// Records of a page. A reader who looks for others gives a longer prefix.
const RECORDS: u32 = 200;

const STATES: [RunState; 4] = [
    RunState::Crashed,
    RunState::Running,
    RunState::Failed,
    RunState::Succeeded,
];

/// The parameters of the address.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(default)]
pub(crate) struct Asked {
    prefix: String,
    /// The word of a state, or any other for all of them.
    state: String,
}

impl Asked {
    fn wanted(&self) -> Option<RunState> {
        STATES.into_iter().find(|state| state.as_str() == self.state)
    }
}

pub(crate) async fn show(
    State(page): State<Arc<Page>>,
    Query(asked): Query<Asked>,
) -> Result<Html<String>, Failure> {
    let events = address(
        "records-events",
        &[("prefix", &asked.prefix), ("state", &asked.state)],
    );
    let body = html! {
        form role="search" action="records" {
            label for="prefix" { "Keys that begin with" }
            " " input #prefix name="prefix" type="search" value=(asked.prefix) maxlength="255" autocomplete="off" spellcheck="false";
            " " label for="state" { "State" }
            " " select #state name="state" {
                option value="" { "any" }
                @for state in STATES {
                    option value=(state.as_str()) selected[asked.wanted() == Some(state)] { (state.as_str()) }
                }
            }
            " " button { "Show" }
        }
        (live(&events, &fragment(&page, &asked).await?))
    };
    Ok(whole(&page, Place::Records, "Runs that are remembered", &body))
}

pub(crate) async fn fragment(page: &Page, asked: &Asked) -> Result<Markup, LockError> {
    let mut filter = RecordFilter::new().prefix(&asked.prefix).limit(RECORDS + 1);
    if let Some(state) = asked.wanted() {
        filter = filter.run_state(state);
    }
    let mut found = page.locks.admin().records(filter).await?;
    let size = usize::try_from(RECORDS).unwrap_or(usize::MAX);
    let more = found.len() > size;
    found.truncate(size);
    Ok(html! {
        @if found.is_empty() { p { "There is no such run." } } @else { (table(&found)) }
        @if more { p { "There are more. Give more of the key." } }
    })
}

const COLUMNS: [&str; 5] = ["Key", "State", "Began", "Attempts", "Holder"];

fn table(records: &[Record]) -> Markup {
    html! {
        table role="table" {
            caption {
                "Ordered by key."
                @if records.iter().any(has_crashed) {
                    " A run that has crashed is in doubt where its on_crash is \"stop\": nothing runs for its key until somebody "
                    "decides. Its page says how."
                }
            }
            thead role="rowgroup" {
                tr role="row" { @for name in COLUMNS { th scope="col" role="columnheader" { (name) } } }
            }
            tbody role="rowgroup" { @for record in records { (line(record)) } }
        }
    }
}

fn line(record: &Record) -> Markup {
    let key = record.key.as_str();
    let values = [
        state(record),
        html! { (length(record.now.since(record.started_at))) " ago" },
        html! { (record.attempts) },
        foreign(&record.holder),
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

fn state(record: &Record) -> Markup {
    html! {
        @let state = record.run_state().as_str();
        span.state.(state) { (state) }
        @if record.is_forgotten() { ", no longer remembered" }
    }
}

fn has_crashed(record: &Record) -> bool {
    record.run_state() == RunState::Crashed
}

/// What to do about a run that has crashed: the runbook in short. `key` is without the namespace.
pub(super) fn runbook(page: &Page, key: &str, record: &Record) -> Markup {
    let mut dblock = format!("dblock --table {}", page.locks.table());
    if let Some(namespace) = page.locks.namespace() {
        dblock = format!(
            "{dblock} --namespace {}",
            quoted(namespace).trim_start_matches("-- ")
        );
    }
    let resolve = |decision: &str| format!("{dblock} records resolve {decision} {}", quoted(key));
    html! {
        @if has_crashed(record) {
            section.runbook {
                h3 { "What to do" }
                p {
                    "The attempt ended without an outcome. With on_crash \"retry\" or \"complete_in\" the next call runs it again, and "
                    "nothing is to be done. With \"stop\" it is in doubt: perhaps the work was done, and perhaps not."
                }
                ol {
                    li { "Make sure that the process of the last attempt is gone: what it has sent may still arrive." }
                    li {
                        "Ask whoever does the work, such as the payment provider, whether it was done. “Never heard of it” is not "
                        "enough: have it cancelled."
                    }
                    li {
                        "Decide. If it was not done and cannot happen any more: " code { (resolve("--run-again")) }
                        ". If it was done, with its result as JSON: " code { (resolve("--succeeded '…'")) }
                        ". If nobody knows yet: nothing. The commands need this service's database, by --url or DATABASE_URL."
                    }
                }
            }
        }
    }
}

/// A text for a shell.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    if !text.starts_with('-') && !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("-- '{}'", printable(text).replace('\'', r"'\''"))
}

/// All that is shown of one record.
pub(super) fn facts(record: &Record) -> Markup {
    let ended = record.state != RecordState::Processing;
    html! {
        dl {
            div { dt { "State" } dd { (state(record)) } }
            div { dt { "Attempts" } dd { (record.attempts) } }
            div { dt { "Last attempt by" } dd { (foreign(&record.holder)) } }
            div { dt { "Began" } dd { (moment(record.started_at)) } }
            @if ended {
                div { dt { "Ended" } dd { (moment(record.finished_at)) } }
                div { dt { "Remembered until" } dd { (moment(record.keep_until)) } }
            }
        }
    }
}
