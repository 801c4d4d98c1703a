//! `dblock serve`: the page of `dblock-web`, alone.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use dblock_web::Access;
use serde_json::json;
use tokio::net::{TcpListener, lookup_host};

use crate::cli::{PageAccess, ServeArguments, StoreArguments};
use crate::connect::{Missing, manager};
use crate::failure::{Code, Failure};
use crate::output;
use crate::progress::during;

/// Runs until a signal ends it.
pub(crate) async fn serve(store: &StoreArguments, arguments: &ServeArguments) -> Result<Code, Failure> {
    let listen = &arguments.listen;
    let failed = |error| cannot_listen(listen, &error);
    let addresses: Vec<SocketAddr> = lookup_host(listen).await.map_err(failed)?.collect();
    // Whatever the name, the addresses say who reaches the page.
    let is_local = addresses.iter().all(|address| address.ip().is_loopback());
    let access = access(arguments, is_local)?;
    let locks = during("connecting to the database", manager(store, Missing::IsAnError)).await?;
    let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
    let url = format!("http://{}/", listener.local_addr().map_err(failed)?);
    let named: Arc<str> = listen.rsplit_once(':').map_or("", |(host, _)| host).into();
    let app: Router =
        dblock_web::router(locks, access).layer(from_fn_with_state(named, by_its_own_name_only));
    if store.json {
        output::json(&json!({"url": url}))?;
    } else {
        output::line(&format!("the page is at {url}"))?;
        if arguments.access != Some(PageAccess::Manage) {
            output::told(&"dblock: it is read-only; with --access manage it can revoke and free locks");
        }
    }
    axum::serve(listener, app).await.map_err(failed)?;
    Ok(Code::Done)
}

fn cannot_listen(address: &str, error: &io::Error) -> Failure {
    let why = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is in use, perhaps by another `dblock serve`; give another one, such as --listen 127.0.0.1:0 for any \
             that is free"
        }
        io::ErrorKind::AddrNotAvailable => "this host has no such address; give another one by --listen",
        io::ErrorKind::PermissionDenied => "this user may not; give a port above 1023 by --listen",
        _ => "give another address by --listen",
    };
    Failure::new(
        Code::System,
        format!("cannot listen on {address} ({error}): {why}"),
    )
}

/// The page asks for no password. On an address that other hosts reach, that must be meant.
fn access(arguments: &ServeArguments, is_local: bool) -> Result<Access, Failure> {
    match arguments.access {
        Some(PageAccess::Manage) => Ok(Access::manage()),
        Some(PageAccess::ReadOnly) => Ok(Access::read_only()),
        None if is_local => Ok(Access::read_only()),
        None => {
            let message = format!(
                "other hosts may reach {}, and the page asks nobody for a password: say by --access what all of them may \
                 do, read-only or manage; or listen on 127.0.0.1 and put a server with a login before it",
                arguments.listen
            );
            Err(Failure::new(Code::Usage, message))
        }
    }
}

/// A page elsewhere may have a name that leads to this host (DNS rebinding). A browser then takes our page
/// for one of that site, whose scripts may read it and press its buttons. So the page is only for those who
/// ask by an address, for `localhost`, or by the name in `--listen`.
async fn by_its_own_name_only(State(named): State<Arc<str>>, request: Request, next: Next) -> Response {
    if names_this_host(request.headers(), &named) {
        return next.run(request).await;
    }
    let message = "ask for this page by the address that `dblock serve` has named; to use a name, give it by --listen\n";
    (StatusCode::FORBIDDEN, message).into_response()
}

fn names_this_host(headers: &HeaderMap, named: &str) -> bool {
    let asked = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(Ok(asked)) = asked.map(str::parse::<Authority>) else {
        return false;
    };
    let host = asked.host().trim_start_matches('[').trim_end_matches(']');
    let is_ours = |name: &str| host.eq_ignore_ascii_case(name);
    is_ours("localhost") || is_ours(named) || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_here_is_not_enough() {
        for (host, ours) in [
            ("127.0.0.1:7575", true),
            ("10.0.0.5:7575", true),
            ("Locks.example:7575", true),
            ("localhost:7575", true),
            ("LocalHost", true),
            ("[::1]:7575", true),
            ("evil.example:7575", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
            assert_eq!(names_this_host(&headers, "locks.example"), ours, "{host}");
        }
        assert!(!names_this_host(&HeaderMap::new(), ""));
    }
}
