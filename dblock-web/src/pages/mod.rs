//! The pages, and what all of them have around them.

pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod records;

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use dblock::LockError;
use maud::{DOCTYPE, Markup, html};

use crate::page::Page;
use crate::text::{foreign, printable};

/// A link of the navigation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Held,
    All,
    Records,
    Elsewhere,
}

const LINKS: [(Place, &str, &str); 3] = [
    (Place::Held, "list", "Held"),
    (Place::All, "list?show=all", "All keys"),
    (Place::Records, "records", "Runs"),
];

/// A whole page.
pub(crate) fn whole(page: &Page, place: Place, title: &str, body: &Markup) -> Html<String> {
    let store = page.locks.capabilities().name;
    let namespace = page.locks.namespace();
    let about = html! { (store) @if let Some(namespace) = namespace { ", namespace " (namespace) } };
    document(place, &about, title, body)
}

fn document(place: Place, about: &Markup, title: &str, body: &Markup) -> Html<String> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (printable(title)) " · dblock" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="page.css";
                script src="page.js" defer {}
            }
            body {
                header {
                    nav aria-label="Views" {
                        @for (link, address, name) in LINKS {
                            a href=(address) aria-current=[(link == place).then_some("page")] { (name) }
                        }
                    }
                    p.about { (about) }
                    p #live hidden { span role="status" {} " " button type="button" { "Pause" } }
                }
                main { h1 { (foreign(title)) } (body) }
            }
        }
    };
    Html(page.into_string())
}

/// The part of a page that the events at `address` replace.
fn live(address: &str, fragment: &Markup) -> Markup {
    html! { div data-events=(address) { (fragment) } }
}

/// A request that is not answered with what was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    text: String,
}

impl Failure {
    pub(crate) fn refused(text: &str) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            text: text.to_owned(),
        }
    }

    /// An address that cannot be answered.
    pub(crate) fn mistake(text: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            text: text.to_owned(),
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        let (status, text) = match &error {
            LockError::Store { source, .. } => {
                let said = source.to_string();
                let (found, remedy) = match said.split_once("; ") {
                    // The library's remedy is for programmers.
                    Some((found, remedy)) if remedy.contains("LockManager::migrate") => (
                        found,
                        "; run `dblock migrate`, or start the service that takes the locks",
                    ),
                    _ if source.is_retryable() => (&*said, ". Try again in a moment."),
                    _ => (&*said, ""),
                };
                let text = format!("{error}: {found}{remedy}");
                (StatusCode::SERVICE_UNAVAILABLE, text)
            }
            LockError::Invalid { .. } => (StatusCode::BAD_REQUEST, error.to_string()),
            _ => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        };
        Self { status, text }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = html! { p role="alert" { (printable(&self.text)) } };
        let title = self.status.canonical_reason().unwrap_or("Failure");
        (self.status, document(Place::Elsewhere, &html! {}, title, &body)).into_response()
    }
}
