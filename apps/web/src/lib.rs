//! A page for operators: which locks are held, by whom, since when, and who waits for them.
//!
//! It is an axum router, to be put under any path of a service, or served alone by `dblock serve`:
//!
//! ```
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! use axum::Router;
//! use dblock::LockManager;
//! use dblock_web::Access;
//!
//! let locks = LockManager::connect("memory:").await?;
//! let app: Router = Router::new().nest_service("/admin/locks", dblock_web::router(locks, Access::read_only()));
//! # Ok::<_, dblock::LockError>(()) }).unwrap();
//! ```
//!
//! **Everybody who reaches the page sees all keys and holders.** Put the service's own login before it, as a
//! layer. [`Access`] says who may also revoke and free locks; nobody, unless the service says so.
//!
//! The page is made on the server, loads nothing from elsewhere and works without JavaScript, which only
//! keeps it up to date. README.md says how it is protected, and what it costs the database.

mod access;
mod actions;
mod cookies;
mod done;
mod headers;
mod live;
mod origin;
mod page;
mod pages;
mod text;
mod token;

use std::sync::Arc;

use axum::Router;
use axum::extract::OriginalUri;
use axum::http::header;
use axum::middleware::map_response;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use dblock::LockManager;

pub use access::Access;
use live::Live;
use page::Page;

/// The page as a router, to be nested under any path. It shows the keys of the manager's namespace.
///
/// The live part asks the store about once a second, whatever the number of readers, over the connection that
/// the manager's other calls for operators and `run_once` take. In a service with many runs, give the page a
/// manager of its own.
pub fn router<S: Clone + Send + Sync + 'static>(locks: LockManager, access: Access) -> Router<S> {
    let page = Arc::new(Page { locks, access });
    let live = Arc::new(Live::new(Arc::clone(&page)));
    // Beside each other, so that links between them fit under any path, and behind any proxy.
    let events = Router::new()
        .route("/list-events", get(live::list))
        .route("/key-events", get(live::key))
        .route("/records-events", get(live::records))
        .with_state(live);
    Router::new()
        .route("/", get(start))
        .route("/list", get(pages::list::show))
        .route("/key", get(pages::key::show))
        .route("/records", get(pages::records::show))
        .route("/confirm", get(actions::confirm))
        .route("/revoke", post(actions::revoke))
        .route("/force-release", post(actions::force_release))
        .route("/page.css", get(style))
        .route("/page.js", get(script))
        .with_state(page)
        .merge(events)
        .layer(map_response(headers::add))
}

/// The path under which the router is nested has no `/` at its end.
async fn start(OriginalUri(uri): OriginalUri) -> Redirect {
    let (_, last) = uri.path().rsplit_once('/').unwrap_or_default();
    if last.is_empty() {
        return Redirect::to("list");
    }
    Redirect::to(&format!("{last}/list"))
}

async fn style() -> impl IntoResponse {
    asset("text/css; charset=utf-8", include_str!("page.css"))
}

async fn script() -> impl IntoResponse {
    asset("text/javascript; charset=utf-8", include_str!("page.js"))
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}
