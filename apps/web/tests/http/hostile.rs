//! Text that attacks the page stays text, and the browser may do only what the page needs.

use axum::Router;
use axum::http::{StatusCode, header};
use dblock::LockOptions;
use dblock_web::{Access, router};

use super::{between, encoded, get, memory};

/// A key that would be markup, a script and an address.
const HOSTILE: &str = "<script>alert(1)</script>\"' onload=x &amp; \r\n\u{202e}é%?#";

#[tokio::test]
async fn hostile_keys_and_holders_are_text() {
    let locks = memory().await;
    let options = LockOptions::new().function("<img src=x onerror=alert(2)>");
    let guard = locks.lock(HOSTILE).options(&options).acquire().await.unwrap();
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
