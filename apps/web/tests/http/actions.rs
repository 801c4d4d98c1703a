//! Revoking and freeing: the question, its token, and who may.

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use dblock::LockManager;
use dblock::store::MemoryStore;
use dblock_web::{Access, router};

use super::{between, encoded, get, memory, send};

/// The parts of the question that a browser would send back.
struct Question {
    cookie: String,
    token: String,
    fence: String,
}

async fn question(app: &Router, action: &str, key: &str) -> Question {
    let asked = get(app, &format!("/confirm?action={action}&key={}", encoded(key))).await;
    assert_eq!(asked.status, StatusCode::OK, "{}", asked.body);
    let cookie = asked.headers[header::SET_COOKIE].to_str().unwrap();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict"), "{cookie}");
    Question {
        cookie: cookie.split(';').next().unwrap().to_owned(),
        token: between(&asked.body, "name=\"token\" value=\"", "\"").to_owned(),
        fence: between(&asked.body, "name=\"fence\" value=\"", "\"").to_owned(),
    }
}

fn answer(action: &str, key: &str, question: &Question) -> Request<Body> {
    Request::post(format!("/{action}?key={}", encoded(key)))
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .header("cookie", &question.cookie)
        .body(Body::from(format!(
            "token={}&fence={}",
            question.token, question.fence
        )))
        .unwrap()
}

#[tokio::test]
async fn a_read_only_page_changes_nothing_whatever_is_sent() {
    let locks = memory().await;
    let guard = locks.lock("a").acquire().await.unwrap();
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
    assert!(!locks.admin().get("a").await.unwrap().unwrap().revoked);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_forged_form_is_refused() {
    let locks = memory().await;
    let guard = locks.lock("a").acquire().await.unwrap();
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
    let row = locks.admin().get("a").await.unwrap().unwrap();
    assert!(row.is_held() && !row.revoked);

    let done = send(&app, answer("revoke", "a", &good)).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    assert_eq!(done.headers[header::LOCATION], "key?key=a&done=revoked");
    assert!(locks.admin().get("a").await.unwrap().unwrap().revoked);
    guard.release().await.unwrap();
}

#[tokio::test]
async fn an_answer_is_about_the_holder_that_was_shown() {
    let locks = memory().await;
    let app: Router = router(locks.clone(), Access::manage());
    for action in ["revoke", "force-release"] {
        let shown = locks.lock("a").acquire().await.unwrap();
        let mut late = question(&app, action, "a").await;
        shown.release().await.unwrap();
        let gone = send(&app, answer(action, "a", &late)).await;
        assert_eq!(gone.headers[header::LOCATION], "key?key=a&done=not-held");
        let other = locks.lock("a").acquire().await.unwrap();
        let refused = send(&app, answer(action, "a", &late)).await;
        assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.body);
        late.fence = other.fence_token().to_string();
        let forged = send(&app, answer(action, "a", &late)).await;
        assert_eq!(forged.status, StatusCode::FORBIDDEN, "{}", forged.body);
        let row = locks.admin().get("a").await.unwrap().unwrap();
        assert!(row.is_held() && !row.revoked);
        other.release().await.unwrap();
    }
}

#[tokio::test]
async fn what_was_done_is_told_once() {
    let locks = memory().await;
    let guard = locks.lock("a").acquire().await.unwrap();
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
    let guard = locks.lock("a").acquire().await.unwrap();
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
    let guard = locks.lock("a").acquire().await.unwrap();
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
        fence: between(&asked.body, "name=\"fence\" value=\"", "\"").to_owned(),
    };
    let without = answer("force-release", "a", &question);
    assert_eq!(send(&app, without).await.status, StatusCode::FORBIDDEN);
    let mut with = answer("force-release", "a", &question);
    with.headers_mut().insert("x-operator", "1".parse().unwrap());
    let done = send(&app, with).await;
    assert_eq!(done.headers[header::LOCATION], "key?key=a&done=freed");
    assert!(!locks.admin().is_locked("a").await.unwrap());
    drop(guard);
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
        locks.lock("a").acquire().await.unwrap(),
        others.lock("b").acquire().await.unwrap(),
    ];
    let app: Router = router(locks.clone(), Access::manage());
    let list = get(&app, "/list").await.body;
    assert!(
        list.contains("namespace shop") && list.contains("href=\"key?key=a\"") && !list.contains("key=b"),
        "{list}"
    );
    let question = question(&app, "revoke", "a").await;
    assert_eq!(
        send(&app, answer("revoke", "a", &question)).await.status,
        StatusCode::SEE_OTHER
    );
    assert!(locks.admin().get("a").await.unwrap().unwrap().revoked);
    drop(guards);
}
