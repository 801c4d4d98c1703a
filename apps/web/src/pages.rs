//! The pages, and what all of them have around them.

pub(crate) mod key;
pub(crate) mod list;
pub(crate) mod records;

use std::time::SystemTime;

use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use dblock::LockError;
use maud::{DOCTYPE, Markup, html};

use crate::page::Page;
use crate::text::{foreign, moment};
use dblock_core::printable::printable;

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

/// The number of colours in the style for databases.
const TINTS: u64 = 8;

/// How often a page that the database cannot answer is asked for again, in seconds.
const AGAIN: &str = "5";

/// The part of a page that is around its body.
#[derive(Debug, Default)]
struct Frame {
    place: Option<Place>,
    /// The database, in words.
    about: String,
    /// Its colour: two that look alike else, such as production and a test, seldom have the same.
    tint: Option<u64>,
    /// The browser asks again by itself.
    again: bool,
}

/// A whole page.
pub(crate) fn whole(page: &Page, place: Place, title: &str, body: &Markup) -> Html<String> {
    let locks = &page.locks;
    let mut about = locks.capabilities().name.to_owned();
    for (before, part) in [
        (" ", locks.location()),
        (", namespace ", locks.namespace().map(str::to_owned)),
    ] {
        about.extend(part.into_iter().flat_map(|part| [before.to_owned(), part]));
    }
    // FNV-1a: the same on every node, and in every version.
    let hash = about.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let frame = Frame {
        place: Some(place),
        tint: Some((hash >> 32) % TINTS),
        about,
        again: false,
    };
    document(&frame, title, body)
}

fn document(frame: &Frame, title: &str, body: &Markup) -> Html<String> {
    let tint = frame.tint.map(|tint| format!("tint-{tint}"));
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                @if frame.again { meta http-equiv="refresh" content=(AGAIN); }
                title { (printable(title)) " · " @if !frame.about.is_empty() { (printable(&frame.about)) " · " } "dblock" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="page.css";
                script src="page.js" defer {}
            }
            body {
                header class=[tint] {
                    nav aria-label="Views" {
                        @for (link, address, name) in LINKS {
                            a href=(address) aria-current=[(Some(link) == frame.place).then_some("page")] { (name) }
                        }
                    }
                    p.about.database { (foreign(&frame.about)) }
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
    html! { div data-events=(address) { (dated(fragment)) } }
}

/// A fragment with the moment at which it was true, by this host's clock.
pub(crate) fn dated(fragment: &Markup) -> Markup {
    html! { (fragment) p.about.as-of { "As of " (moment(SystemTime::now().into())) } }
}

/// A request that is not answered with what was asked for.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    text: String,
    /// Asking again may help.
    again: bool,
}

impl Failure {
    pub(crate) fn refused(text: &str) -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            text: text.to_owned(),
            again: false,
        }
    }

    /// What the question was about has changed since.
    pub(crate) fn too_late(text: &str) -> Self {
        Self {
            status: StatusCode::CONFLICT,
            text: text.to_owned(),
            again: false,
        }
    }

    /// An address that cannot be answered.
    pub(crate) fn mistake(text: &str) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            text: text.to_owned(),
            again: false,
        }
    }

    /// The failure of an action, which must not be repeated unasked.
    pub(crate) fn of_an_action(error: LockError) -> Self {
        Self {
            again: false,
            ..Self::from(error)
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
                    Some((found, remedy)) if remedy.contains("locks.admin().migrate()") => (
                        found,
                        "; run `dblock migrate`, or start the service that takes the locks",
                    ),
                    _ if source.is_retryable() && said.ends_with('?') => (&*said, " Try again in a moment."),
                    _ if source.is_retryable() => (&*said, ". Try again in a moment."),
                    _ => (&*said, ""),
                };
                let text = error.to_string();
                let about = text.strip_suffix(&said).unwrap_or_default();
                (StatusCode::SERVICE_UNAVAILABLE, format!("{about}{found}{remedy}"))
            }
            LockError::Invalid { .. } => (StatusCode::BAD_REQUEST, error.to_string()),
            _ => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
        };
        Self {
            again: status == StatusCode::SERVICE_UNAVAILABLE,
            status,
            text,
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = html! {
            p role="alert" { (printable(&self.text)) }
            @if self.again { p { "This page asks again every " (AGAIN) " seconds." } }
        };
        let frame = Frame {
            again: self.again,
            ..Frame::default()
        };
        let title = self.status.canonical_reason().unwrap_or("Failure");
        (self.status, document(&frame, title, &body)).into_response()
    }
}
