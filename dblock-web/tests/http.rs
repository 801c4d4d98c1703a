//! The page without a browser: what the server answers, whatever the pages show.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use dblock::store::MemoryStore;
use dblock::{LockManager, LockOptions, OnCrash, RunOptions};
use dblock_web::{Access, router};
use std::time::Duration;
use tower::ServiceExt as _;

/// A key that would be markup, a script and an address.
const HOSTILE: &str = "<script>alert(1)</script>\"' onload=x &amp; \r\n\u{202e}é%?#";

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

async fn send(app: &Router, request: Request<Body>) -> Answer {
    let (parts, body) = app.clone().oneshot(request).await.unwrap().into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    Answer {
        status: parts.status,
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

async fn get(app: &Router, address: &str) -> Answer {
    send(app, Request::get(address).body(Body::empty()).unwrap()).await
}

fn encoded(key: &str) -> String {
    form_urlencoded::byte_serialize(key.as_bytes()).collect()
}

/// The text between two others.
fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    let (_, rest) = text
        .split_once(begin)
        .unwrap_or_else(|| panic!("no {begin:?} in {text}"));
    rest.split_once(end).unwrap().0
}

async fn memory() -> LockManager {
    LockManager::connect("memory:").await.unwrap()
}

/// The parts of the question that a browser would send back.
struct Question {
    cookie: String,
    token: String,
}

async fn question(app: &Router, action: &str, key: &str) -> Question {
    let asked = get(app, &format!("/confirm?action={action}&key={}", encoded(key))).await;
    assert_eq!(asked.status, StatusCode::OK, "{}", asked.body);
    let cookie = asked.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict"), "{cookie}");
    Question {
        cookie: cookie.split(';').next().unwrap().to_owned(),
        token: between(&asked.body, "name=\"token\" value=\"", "\"").to_owned(),
    }
}

fn answer(action: &str, key: &str, question: &Question) -> Request<Body> {
    Request::post(format!("/{action}?key={}", encoded(key)))
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("cookie", &question.cookie)
        .body(Body::from(format!("token={}", question.token)))
        .unwrap()
}

#[tokio::test]
async fn hostile_keys_and_holders_are_text() {
    let locks = memory().await;
    let options = LockOptions::new().function("<img src=x onerror=alert(2)>");
    let guard = locks.acquire(HOSTILE, options).await.unwrap();
    let app: Router = router(locks, Access::manage());
    let key = format!("/key?key={}", encoded(HOSTILE));
    let confirm = format!("/confirm?action=revoke&key={}", encoded(HOSTILE));
    let search = format!(
        "/list?prefix={}&after={}",
        encoded("\"><script>"),
        encoded(HOSTILE)
    );
    for address in ["/list", "/list?show=all", &key, &confirm, &search] {
        let page = get(&app, address).await;
        assert_eq!(page.status, StatusCode::OK, "{address}: {}", page.body);
        let body = page.body.replace("<script src=\"page.js\" defer></script>", "");
        assert!(
            !body.contains("<script") && !body.contains("<img"),
            "{address}: {body}"
        );
        assert!(!body.contains(['\r', '\u{202e}']), "{address}: {body}");
        let title = body
            .split_once("<title>")
            .and_then(|(_, rest)| rest.split_once("</title>"));
        assert!(
            title.is_some_and(|(title, _)| !title.contains("bdi")),
            "{address}: {title:?}"
        );
    }
    let list = get(&app, "/list").await.body;
    assert!(
        list.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;' onload=x &amp;amp; \\r\\n\\u{202e}é%?#"),
        "{list}"
    );
    let link = between(&list, "href=\"key?", "\"");
    assert!(
        get(&app, &format!("/key?{link}"))
            .await
            .body
            .contains(&guard.fence_token().to_string())
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn every_answer_allows_the_browser_only_what_the_page_needs() {
    let app: Router = router(memory().await, Access::read_only());
    for (address, status, kind) in [
        ("/list", 200, "text/html; charset=utf-8"),
        ("/page.js", 200, "text/javascript; charset=utf-8"),
        ("/page.css", 200, "text/css; charset=utf-8"),
        ("/key?key=", 400, "text/html; charset=utf-8"),
        ("/confirm?action=revoke&key=a", 403, "text/html; charset=utf-8"),
    ] {
        let page = get(&app, address).await;
        assert_eq!(
            (page.status.as_u16(), &page.headers[header::CONTENT_TYPE]),
            (status, &kind.parse().unwrap())
        );
        let policy = page.headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; ") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(page.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(page.headers[header::CACHE_CONTROL], "no-store");
        // Nothing inline, and nothing from elsewhere.
        for word in ["://", "<style", "style=", "onclick", "javascript:"] {
            assert!(!page.body.contains(word), "{address} has {word}");
        }
    }
}

#[tokio::test]
async fn a_read_only_page_changes_nothing_whatever_is_sent() {
    let locks = memory().await;
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    let secret = [9; 32];
    let manages: Router = router(locks.clone(), Access::manage().secret(secret));
    // Even a token that another page with the same secret has made.
    let question = question(&manages, "revoke", "a").await;
    let app: Router = router(locks.clone(), Access::read_only().secret(secret));
    let refused = send(&app, answer("revoke", "a", &question)).await;
    assert_eq!(refused.status, StatusCode::FORBIDDEN, "{}", refused.body);
    assert!(refused.body.contains("Read-only"), "{}", refused.body);
    assert_eq!(
        get(&app, "/confirm?action=revoke&key=a").await.status,
        StatusCode::FORBIDDEN
    );
    let page = get(&app, "/key?key=a").await.body;
    assert!(!page.contains("confirm"), "{page}");
    assert!(page.contains("--access manage"), "it says who may: {page}");
    assert!(!locks.get("a").await.unwrap().unwrap().revoked);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_forged_form_is_refused() {
    let locks = memory().await;
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    let app: Router = router(locks.clone(), Access::manage());
    let good = question(&app, "revoke", "a").await;
    let forged = |change: fn(&mut Request<Body>)| {
        let mut request = answer("revoke", "a", &good);
        change(&mut request);
        request
    };
    let requests = [
        ("no token", forged(|it| *it.body_mut() = Body::empty())),
        (
            "a wrong token",
            forged(|it| *it.body_mut() = Body::from("token=1.00")),
        ),
        ("no cookie", forged(|it| drop(it.headers_mut().remove("cookie")))),
        (
            "from another site",
            forged(|it| {
                it.headers_mut()
                    .insert("sec-fetch-site", "cross-site".parse().unwrap());
            }),
        ),
        (
            "from nowhere",
            forged(|it| drop(it.headers_mut().remove("sec-fetch-site"))),
        ),
        ("another key's token", answer("revoke", "b", &good)),
        ("another action's token", answer("force-release", "a", &good)),
    ];
    for (what, request) in requests {
        let refused = send(&app, request).await;
        assert_eq!(refused.status, StatusCode::FORBIDDEN, "{what}: {}", refused.body);
    }
    let asked = send(&app, Request::get("/revoke?key=a").body(Body::empty()).unwrap()).await;
    assert_eq!(asked.status, StatusCode::METHOD_NOT_ALLOWED);
    let row = locks.get("a").await.unwrap().unwrap();
    assert!(row.is_held() && !row.revoked);

    let done = send(&app, answer("revoke", "a", &good)).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    assert_eq!(done.headers[header::LOCATION], "key?key=a&done=revoked");
    assert!(locks.get("a").await.unwrap().unwrap().revoked);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn what_was_done_is_told_once() {
    let locks = memory().await;
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    let app: Router = router(locks.clone(), Access::manage());
    let question = question(&app, "revoke", "a").await;
    let done = send(&app, answer("revoke", "a", &question)).await;
    let cookie = done.headers[header::SET_COOKIE].to_str().unwrap();
    let address = format!("/{}", done.headers[header::LOCATION].to_str().unwrap());
    let cookie = cookie.split(';').next().unwrap();
    let first = Request::get(&address).header("cookie", cookie);
    let first = send(&app, first.body(Body::empty()).unwrap()).await;
    assert!(first.body.contains("It is revoked"), "{}", first.body);
    let taken_back = first.headers[header::SET_COOKIE].to_str().unwrap();
    let name = cookie.split('=').next().unwrap();
    assert!(
        taken_back.starts_with(name) && taken_back.contains("Max-Age=0"),
        "{taken_back}"
    );
    let again = get(&app, &address).await;
    assert!(!again.body.contains("It is revoked"), "{}", again.body);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_key_that_nobody_holds_is_not_to_be_revoked() {
    let locks = memory().await;
    let app: Router = router(locks.clone(), Access::manage());
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    assert!(
        get(&app, "/key?key=a")
            .await
            .body
            .contains("<p class=\"actions\">")
    );
    guard.release().await.unwrap();
    for key in ["a", "never-locked"] {
        let page = get(&app, &format!("/key?key={key}")).await.body;
        assert!(page.contains("<p class=\"actions\" hidden>"), "{page}");
    }
    let none = get(&app, "/key").await;
    assert_eq!(none.status, StatusCode::BAD_REQUEST);
    assert!(none.body.contains("Which key?"), "{}", none.body);
}

#[tokio::test]
async fn the_host_decides_who_manages() {
    let locks = memory().await;
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    let app: Router = router(
        locks.clone(),
        Access::manage_if(|request| request.headers.contains_key("x-operator")),
    );
    let by = |name: &str| {
        Request::get("/key?key=a")
            .header(name, "1")
            .body(Body::empty())
            .unwrap()
    };
    assert!(
        send(&app, by("x-operator"))
            .await
            .body
            .contains("confirm?action=force-release")
    );
    assert!(!send(&app, by("x-reader")).await.body.contains("confirm"));
    let mut ask = Request::get("/confirm?action=force-release&key=a")
        .body(Body::empty())
        .unwrap();
    assert_eq!(
        get(&app, "/confirm?action=force-release&key=a").await.status,
        StatusCode::FORBIDDEN
    );
    ask.headers_mut().insert("x-operator", "1".parse().unwrap());
    let asked = send(&app, ask).await;
    let question = Question {
        cookie: asked.headers[header::SET_COOKIE].to_str().unwrap().to_owned(),
        token: between(&asked.body, "name=\"token\" value=\"", "\"").to_owned(),
    };
    let without = answer("force-release", "a", &question);
    assert_eq!(send(&app, without).await.status, StatusCode::FORBIDDEN);
    let mut with = answer("force-release", "a", &question);
    with.headers_mut().insert("x-operator", "1".parse().unwrap());
    let done = send(&app, with).await;
    assert_eq!(done.headers[header::LOCATION], "key?key=a&done=freed");
    assert!(!locks.is_locked("a").await.unwrap());
    drop(guard);
}

#[tokio::test]
async fn links_fit_under_any_path() {
    let locks = memory().await;
    let alone: Router = router(locks.clone(), Access::read_only());
    assert_eq!(get(&alone, "/").await.headers[header::LOCATION], "list");
    let nested: Router = Router::new().nest("/admin/locks", router(locks, Access::read_only()));
    assert_eq!(
        get(&nested, "/admin/locks").await.headers[header::LOCATION],
        "locks/list"
    );
    let page = get(&nested, "/admin/locks/list").await;
    assert_eq!(page.status, StatusCode::OK);
    for link in page
        .body
        .split("href=\"")
        .chain(page.body.split("src=\""))
        .skip(1)
    {
        assert!(!link.starts_with('/'), "{link}");
    }
    assert_eq!(get(&nested, "/admin/locks/page.css").await.status, StatusCode::OK);
}

#[tokio::test]
async fn the_namespace_is_shown_and_not_asked_for() {
    let store = MemoryStore::new();
    let locks = LockManager::builder(store.clone())
        .namespace("shop")
        .build()
        .await
        .unwrap();
    let others = LockManager::builder(store).build().await.unwrap();
    let guards = [
        locks.acquire("a", LockOptions::new()).await.unwrap(),
        others.acquire("b", LockOptions::new()).await.unwrap(),
    ];
    let app: Router = router(locks.clone(), Access::manage());
    let list = get(&app, "/list").await.body;
    assert!(
        list.contains("shop:a") && list.contains("href=\"key?key=a\"") && !list.contains("key=b"),
        "{list}"
    );
    let question = question(&app, "revoke", "a").await;
    assert_eq!(
        send(&app, answer("revoke", "a", &question)).await.status,
        StatusCode::SEE_OTHER
    );
    assert!(locks.get("a").await.unwrap().unwrap().revoked);
    drop(guards);
}

#[tokio::test]
async fn the_longest_held_comes_first_and_pages_have_all() {
    let locks = memory().await;
    let mut guards = Vec::new();
    for number in (0..120).rev() {
        guards.push(
            locks
                .acquire(format!("key {number:03}"), LockOptions::new())
                .await
                .unwrap(),
        );
    }
    let app: Router = router(locks, Access::read_only());
    for (begin, first) in [
        ("/list", "key 119"),
        ("/list?show=all", "key 000"),
        ("/list?prefix=key+0", "key 099"),
    ] {
        let mut address = begin.to_owned();
        let mut keys = Vec::new();
        loop {
            let page = get(&app, &address).await.body;
            let found = page
                .split("<bdi>key ")
                .skip(1)
                .map(|rest| format!("key {}", &rest[..3]));
            keys.extend(found);
            assert!(keys.len() <= 120, "{begin} goes on: {keys:?}");
            let Some((before, _)) = page.split_once("\" rel=\"next\"") else {
                break;
            };
            let next = before.rsplit_once("href=\"").unwrap().1.replace("&amp;", "&");
            address = format!("/{next}");
        }
        assert_eq!(keys[0], first, "{begin}");
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(
            (keys.len(), count),
            if begin.contains("prefix") {
                (100, 100)
            } else {
                (120, 120)
            },
            "{begin}"
        );
    }
    drop(guards);
}

#[tokio::test]
async fn a_keys_page_tells_what_the_row_and_the_record_have() {
    let locks = memory().await;
    let app: Router = router(locks.clone(), Access::read_only());
    assert!(get(&app, "/key?key=a").await.body.contains("This key has no row"));
    let guard = locks.acquire("a", LockOptions::new()).await.unwrap();
    let row = locks.get("a").await.unwrap().unwrap();
    let page = get(&app, "/key?key=a").await.body;
    for part in [
        &row.holder,
        &row.owner.to_string(),
        &row.fence_token.to_string(),
        "Held since",
        "Lease ends",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    guard.release().await.unwrap();
    let page = get(&app, "/key?key=a").await.body;
    assert!(page.contains("Last holder") && page.contains(">free<"), "{page}");

    let options = RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    locks
        .run_once("pay", options, async |_| {
            Ok::<_, dblock::LockError>("sekret".to_owned())
        })
        .await
        .unwrap();
    for address in ["/key?key=pay", "/records", "/records?state=succeeded&prefix=p"] {
        let page = get(&app, address).await.body;
        assert!(
            page.contains(">succeeded<") && !page.contains("sekret"),
            "{address}: {page}"
        );
    }
    assert!(
        get(&app, "/records?state=failed")
            .await
            .body
            .contains("There is no such run")
    );
}

#[tokio::test]
async fn a_store_that_fails_is_told_with_a_remedy() {
    let locks = memory().await;
    locks.shutdown(Duration::ZERO).await;
    let app: Router = router(locks, Access::read_only());
    let page = get(&app, "/list").await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE, "{}", page.body);
    assert!(page.body.contains("role=\"alert\""), "{}", page.body);
    // The stream ends, so that a server that waits for its connections can stop.
    assert_eq!(get(&app, "/list-events").await.body, "");
}

/// The page is for people who operate it, and cannot build a manager.
#[tokio::test]
async fn without_tables_the_page_says_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("a.db").display());
    let locks = LockManager::builder_for_url(&url).unwrap();
    let app = router(locks.auto_migrate(false).start().unwrap(), Access::read_only());
    let answer = get(&app, "/list").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        answer.body.contains("is not there; run `dblock migrate`") && !answer.body.contains("LockManager"),
        "{}",
        answer.body
    );
}
