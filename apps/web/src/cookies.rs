//! The cookies of a request.

use axum::http::header;
use axum::http::request::Parts;

/// The values of all cookies of that name: a browser sends those of the paths above, too.
pub(crate) fn named<'r>(request: &'r Parts, name: &'r str) -> impl Iterator<Item = &'r str> {
    let headers = request.headers.get_all(header::COOKIE).into_iter();
    let pairs = headers
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'));
    pairs.filter_map(move |pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}
