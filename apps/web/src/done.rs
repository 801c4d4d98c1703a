//! An action that was just done is told once. A cookie goes with the redirect, and the page that tells it
//! takes the cookie back: a reload of the same address does not say again that a lock was revoked.

use axum::http::request::Parts;

use crate::cookies;

const COOKIE: &str = "dblock_done";

/// The header that goes with the redirect.
pub(crate) const SET: &str = "dblock_done=1; Max-Age=60; HttpOnly; SameSite=Strict";

/// The header that takes the cookie back.
pub(crate) const UNSET: &str = "dblock_done=; Max-Age=0; HttpOnly; SameSite=Strict";

/// Whether it has not been told yet.
pub(crate) fn is_new(request: &Parts) -> bool {
    cookies::named(request, COOKIE).next().is_some()
}
