//! The page in a real browser, on locks in a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod chromium;
mod screenshots;

use std::net::ToSocketAddrs as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse as _};
use axum::routing::get;
use chromium::Tab;
use dblock::{LockManager, LockOptions};
use dblock_tests::proxy::{Proxy, Traffic};
use dblock_tests::{Backend, Kind, own_server};
use dblock_web::{Access, router};
use serde_json::json;
use tokio::net::TcpListener;

/// Runs its script wherever it is taken for markup.
const HOSTILE: &str = "<img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>'\"&amp;";

/// A browser and a database; `None`, said loudly, when one of them is not there.
async fn tab_and_rows() -> Option<(Tab, Backend)> {
    let program = own_server::chromium()?;
    let backend = Backend::new(Kind::Postgres).await?;
    Some((Tab::open(&program).await, backend))
}

/// Serves an application on a port of its own. The address.
pub(crate) async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// The page under a path of a service.
async fn page(locks: &LockManager, access: Access) -> String {
    let app = Router::new().nest_service("/admin/locks", router(locks.clone(), access));
    format!("{}/admin/locks", serve(app).await)
}

/// Presses a button that sends a form without a token, from the page that is open.
fn forge(action: &str) -> String {
    format!(
        "fetch({}, {{method: 'POST', body: new URLSearchParams({{token: ''}})}}).then((it) => it.status)",
        json!(action)
    )
}

#[tokio::test]
async fn what_happens_to_a_lock_is_seen_without_a_reload() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let (locks, other) = (backend.manager().await, backend.manager().await);
    let page = page(&backend.manager().await, Access::read_only()).await;
    tab.visit(&format!("{page}/list")).await;
    tab.until_shown("nobody holds one").await;
    tab.value("window.same = true").await;

    let guard = locks.lock(HOSTILE).acquire().await.unwrap();
    tab.until_shown(HOSTILE).await;
    tab.until_shown(&guard.fence_token().to_string()).await;
    tab.value("document.querySelector('tbody a').focus()").await;
    let forever = LockOptions::new().wait_forever();
    let waits = tokio::spawn(async move { other.lock(HOSTILE).options(&forever).acquire().await });
    tab.until_shown(" next, for ").await;
    let focused = tab
        .value("document.activeElement.getAttribute('href').startsWith('key?')")
        .await;
    assert_eq!(focused, true, "the fragment that came has the focus");
    guard.release().await.unwrap();
    let passed_on = waits.await.unwrap().unwrap();
    tab.until_shown(&passed_on.fence_token().to_string()).await;
    passed_on.release().await.unwrap();
    tab.until_shown("nobody holds one").await;
    assert_eq!(tab.value("[window.same, window.hurt]").await, json!([true, null]));

    tab.value("document.querySelector('#live button').click()").await;
    tab.until_shown("Paused").await;
    tab.assert_no_faults();
    backend.clean_up().await;
}

#[tokio::test]
async fn revoking_a_lock_ends_its_body_and_needs_no_javascript() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let locks = backend.manager().await;
    let page = page(&backend.manager().await, Access::manage()).await;
    let options = LockOptions::new().ttl(Duration::from_secs(6));
    let holder = locks.clone();
    let body = tokio::spawn(async move {
        holder
            .lock(HOSTILE)
            .options(&options)
            .run(std::future::pending::<()>())
            .await
    });
    while !locks.admin().is_locked(HOSTILE).await.unwrap() {
        tokio::task::yield_now().await;
    }
    tab.call("Emulation.setScriptExecutionDisabled", json!({"value": true}))
        .await;
    tab.visit(&format!("{page}/list")).await;
    tab.press("tbody a", "/key?").await;
    tab.press(".actions a", "/confirm?").await;
    assert_eq!(
        tab.value("document.querySelector('strong').innerText").await,
        HOSTILE
    );
    tab.press("form button", "done=revoked").await;
    tab.until_shown("It is revoked").await;
    let address = tab.value("location.href").await;
    tab.visit(address.as_str().unwrap()).await;
    let told = tab
        .value("document.body.innerText.includes('It is revoked')")
        .await;
    assert_eq!(told, false, "it is told once");
    let lost = body.await.unwrap().unwrap_err();
    assert!(lost.is_lost(), "{lost}");
    tab.assert_no_faults();
    backend.clean_up().await;
}

#[tokio::test]
async fn what_may_be_done_follows_the_live_part() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let locks = backend.manager().await;
    let page = page(&backend.manager().await, Access::manage()).await;
    let hidden = "document.querySelector('.actions').hidden";
    tab.visit(&format!("{page}/key?key=a")).await;
    assert_eq!(tab.value(hidden).await, true);
    let guard = locks.lock("a").acquire().await.unwrap();
    tab.until_shown("Held since").await;
    assert_eq!(tab.value(hidden).await, false);
    guard.release().await.unwrap();
    tab.until_shown("Last holder").await;
    assert_eq!(tab.value(hidden).await, true);
    tab.assert_no_faults();
    backend.clean_up().await;
}

/// What is shown is of a moment that has passed, and says so; what cannot be shown comes back by itself.
#[tokio::test]
async fn without_the_database_the_page_tells_its_age_and_asks_again() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let locks = backend.manager().await;
    let guard = locks
        .lock("order:42")
        .ttl(Duration::from_mins(10))
        .acquire()
        .await
        .unwrap();
    let direct = backend.url().unwrap();
    let (before, place) = direct.rsplit_once('@').unwrap();
    let (address, name) = place.split_once('/').unwrap();
    let proxy = Proxy::start(address.to_socket_addrs().unwrap().next().unwrap());
    let url = format!("{before}@{}/{name}", proxy.address());
    let seen = LockManager::builder_for_url(&url).unwrap().table(&backend.table);
    let page = page(&seen.build().await.unwrap(), Access::read_only()).await;
    tab.visit(&format!("{page}/list")).await;
    tab.until_shown("Live").await;
    let stale = "document.querySelector('[data-events]').classList.contains('stale')";
    assert_eq!(tab.value(stale).await, false);
    proxy.set(Traffic::Refused);
    tab.until_shown("Not up to date").await;
    tab.until_shown("As of ").await;
    assert_eq!(tab.value(stale).await, true);
    tab.visit(&format!("{page}/list?show=all")).await;
    tab.until_shown("asks again").await;
    proxy.set(Traffic::Flows);
    tab.until_shown("order:42").await;
    guard.release().await.unwrap();
    backend.clean_up().await;
}

/// As behind a proxy while the service starts again.
#[tokio::test]
async fn the_live_part_comes_back_after_an_answer_that_is_no_stream() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let is_up = Arc::new(AtomicBool::new(false));
    let up = Arc::clone(&is_up);
    let proxy = from_fn(move |request: Request, next: Next| {
        let passes = up.load(Ordering::Relaxed) || !request.uri().path().ends_with("-events");
        async move {
            if passes {
                return next.run(request).await;
            }
            StatusCode::BAD_GATEWAY.into_response()
        }
    });
    let locks = backend.manager().await;
    let app = router(locks.clone(), Access::read_only()).layer(proxy);
    tab.visit(&format!("{}/list", serve(app).await)).await;
    tab.until_shown("Not connected, trying again").await;
    is_up.store(true, Ordering::Relaxed);
    let guard = locks.lock("order:42").acquire().await.unwrap();
    tab.until_shown("order:42").await;
    tab.until_shown("Live").await;
    guard.release().await.unwrap();
    backend.clean_up().await;
}

#[tokio::test]
async fn forged_requests_are_refused() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let locks = backend.manager().await;
    let guard = locks.lock("a").acquire().await.unwrap();
    let read_only = page(&locks, Access::read_only()).await;
    tab.visit(&format!("{read_only}/key?key=a")).await;
    assert_eq!(tab.value("document.querySelector('.actions')").await, json!(null));
    for action in ["revoke?key=a", "force-release?key=a"] {
        assert_eq!(tab.value(&forge(action)).await, 403, "{action}");
    }
    let managed = page(&locks, Access::manage()).await;
    tab.visit(&format!("{managed}/key?key=a")).await;
    assert_eq!(tab.value(&forge("revoke?key=a")).await, 403, "without a token");

    // Another page of the same host, which the browser sends this page's cookies to. It has seen a token.
    tab.visit(&format!("{managed}/confirm?action=revoke&key=a")).await;
    let token = tab.value("document.querySelector('[name=token]').value").await;
    let form = format!(
        "<form method=post action='{managed}/revoke?key=a'><input name=token value='{}'></form>\
         <script>document.forms[0].submit()</script>",
        token.as_str().unwrap()
    );
    let elsewhere = serve(Router::new().route("/", get(Html(form)))).await;
    tab.call("Page.navigate", json!({"url": elsewhere})).await;
    tab.until_shown("The form was not sent from this page").await;
    let row = locks.admin().get("a").await.unwrap().unwrap();
    assert!(row.is_held() && !row.revoked);
    guard.release().await.unwrap();
    backend.clean_up().await;
}

#[tokio::test]
async fn it_is_readable_on_a_phone_and_in_the_dark() {
    let Some((mut tab, backend)) = tab_and_rows().await else {
        return;
    };
    let locks = backend.manager().await;
    let long = "order:".repeat(40);
    let guard = locks.lock(&long).acquire().await.unwrap();
    let page = page(&locks, Access::read_only()).await;
    tab.resize(360, 740).await;
    for address in ["list", "list?show=all", "records", &format!("key?key={long}")] {
        tab.visit(&format!("{page}/{address}")).await;
        let wide = tab.value("document.documentElement.scrollWidth").await;
        assert!(wide.as_u64().unwrap() <= 360, "{address} is {wide} wide");
    }
    let back = "getComputedStyle(document.body).backgroundColor";
    let light = tab.value(back).await;
    tab.prefer("dark").await;
    assert_ne!(tab.value(back).await, light);
    tab.assert_no_faults();
    guard.release().await.unwrap();
    backend.clean_up().await;
}
