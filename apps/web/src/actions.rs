//! The actions of an operator on a key: a question, and its answer.
//!
//! Each request is checked here, whatever the pages show: that access allows it, that the form comes from
//! this page, and that the question was shown to this browser.

use std::sync::Arc;

use axum::Form;
use axum::extract::{Query, State};
use axum::http::header::SET_COOKIE;
use axum::http::request::Parts;
use axum::response::{AppendHeaders, IntoResponse, Redirect, Response};
use dblock::LockRow;
use maud::html;
use serde::Deserialize;

use crate::page::Page;
use crate::pages::{Failure, Place, whole};
use crate::text::{address, foreign, length};
use crate::{done, origin, token};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Action {
    Revoke,
    ForceRelease,
}

impl Action {
    /// As it stands in addresses.
    fn word(self) -> &'static str {
        match self {
            Self::Revoke => "revoke",
            Self::ForceRelease => "force-release",
        }
    }

    fn question(self) -> &'static str {
        match self {
            Self::Revoke => "Revoke this lock?",
            Self::ForceRelease => "Free this lock by force?",
        }
    }

    fn consequence(self) -> &'static str {
        match self {
            Self::Revoke => {
                "Its lease is no longer lengthened. The holder learns of it at its next renewal. Its work is stopped at \
                 the end of the lease at the latest, and nobody else gets the lock before that."
            }
            Self::ForceRelease => {
                "Others get the lock at once, but the holder goes on until its next renewal, or without renewals until \
                 the end of its lease: two may do the work at the same time. Only fence tokens protect what they write. Revoking is safe; do this if the holder \
                 is surely gone."
            }
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct Question {
    action: Action,
    #[serde(default)]
    key: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Subject {
    key: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Answer {
    #[serde(default)]
    token: String,
    /// The fence token of the holder that was shown.
    #[serde(default)]
    fence: i64,
}

pub(crate) async fn confirm(
    State(page): State<Arc<Page>>,
    Query(Question { action, key }): Query<Question>,
    request: Parts,
) -> Result<Response, Failure> {
    check_access(&page, &request)?;
    let row = page.locks.admin().get(&key).await?.filter(LockRow::is_held);
    let (cookie, set) = token::cookie(&request);
    // In the address, because a browser would change the ends of lines in a field.
    let send_to = address(action.word(), &[("key", &key)]);
    let back = address("key", &[("key", &key)]);
    let body = html! {
        p { "Key: " strong { (foreign(&key)) } }
        @if let Some(transaction) = row.as_ref().and_then(|row| row.transaction.as_ref()) {
            p { "Kept by " strong { (foreign(&transaction.to_string())) } "." }
            p { "It alone can free the key: it must end, or its session must be ended in the database." }
            p { a href=(back) { "Back to the key" } }
        } @else if let Some(row) = row {
            p { "Held by " strong { (foreign(&row.holders())) } " for " (length(row.now.since(row.acquired_at))) "." }
            p { (action.consequence()) }
            form method="post" action=(send_to) {
                @let token = token::make(&page.access.secret, &cookie, action.word(), &key, row.fence_token);
                input type="hidden" name="token" value=(token);
                input type="hidden" name="fence" value=(row.fence_token);
                button.danger[action == Action::ForceRelease] { (action.question().trim_end_matches('?')) }
                " " a.button href=(back) { "Cancel" }
            }
        } @else {
            p { "Nobody holds it." }
            p { a href=(back) { "Back to the key" } }
        }
    };
    let answer = whole(&page, Place::Elsewhere, action.question(), &body);
    let set = AppendHeaders(set.map(|set| (SET_COOKIE, set)));
    Ok((set, answer).into_response())
}

pub(crate) async fn revoke(
    State(page): State<Arc<Page>>,
    Query(Subject { key }): Query<Subject>,
    request: Parts,
    Form(answer): Form<Answer>,
) -> Result<Response, Failure> {
    check(&page, &request, Action::Revoke, &key, &answer)?;
    check_holder(&page, &key, &answer).await?;
    let was_held = page
        .locks
        .admin()
        .revoke(&key)
        .await
        .map_err(Failure::of_an_action)?;
    Ok(back(&key, was_held, "revoked"))
}

pub(crate) async fn force_release(
    State(page): State<Arc<Page>>,
    Query(Subject { key }): Query<Subject>,
    request: Parts,
    Form(answer): Form<Answer>,
) -> Result<Response, Failure> {
    check(&page, &request, Action::ForceRelease, &key, &answer)?;
    check_holder(&page, &key, &answer).await?;
    let was_held = page
        .locks
        .admin()
        .force_release(&key)
        .await
        .map_err(Failure::of_an_action)?;
    Ok(back(&key, was_held, "freed"))
}

fn back(key: &str, was_held: bool, done: &str) -> Response {
    let done = if was_held { done } else { "not-held" };
    let to = Redirect::to(&address("key", &[("key", key), ("done", done)]));
    (AppendHeaders([(SET_COOKIE, done::SET)]), to).into_response()
}

fn check_access(page: &Page, request: &Parts) -> Result<(), Failure> {
    if page.access.allows(request) {
        return Ok(());
    }
    Err(Failure::refused(
        "Read-only: you may look at locks here, but not change them.",
    ))
}

fn check(page: &Page, request: &Parts, action: Action, key: &str, answer: &Answer) -> Result<(), Failure> {
    check_access(page, request)?;
    if !origin::is_ours(request) {
        return Err(Failure::refused("The form was not sent from this page."));
    }
    let Answer { token, fence } = answer;
    if token::fits(&page.access.secret, request, action.word(), key, *fence, token) {
        return Ok(());
    }
    Err(Failure::refused(
        "The form is too old, or was not made for this browser. Go back to the key, and answer the question again; the \
         page needs its cookie for that.",
    ))
}

/// The answer may come late, and it is about the holder that was shown.
async fn check_holder(page: &Page, key: &str, answer: &Answer) -> Result<(), Failure> {
    let row = page.locks.admin().get(key).await.map_err(Failure::of_an_action)?;
    if row.is_none_or(|row| !row.is_held() || row.fence_token == answer.fence) {
        return Ok(());
    }
    Err(Failure::too_late(
        "Nothing was done: another owner holds the lock by now. Go back to the key to see who.",
    ))
}
