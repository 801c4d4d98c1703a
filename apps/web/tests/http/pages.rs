//! What the pages show, in which order, and where their links lead.

use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use dblock::{LockManager, LockOptions, OnCrash, RunOptions};
use dblock_web::{Access, router};

use super::{get, memory};
use dblock_tests::deadlock::deadlock;
use dblock_tests::transaction::Transaction;
use dblock_tests::{Backend, Kind};
use tokio::time::timeout;

#[tokio::test]
async fn links_fit_under_any_path() {
    let locks = memory().await;
    let alone: Router = router(locks.clone(), Access::read_only());
    assert_eq!(get(&alone, "/").await.headers[header::LOCATION], "list");
    let nested: Router = Router::new().nest("/admin/locks", router(locks.clone(), Access::read_only()));
    assert_eq!(
        get(&nested, "/admin/locks").await.headers[header::LOCATION],
        "locks/list"
    );
    let nested: Router = Router::new().nest_service("/admin/locks", router(locks, Access::read_only()));
    // With a `/` at the end, as people type it.
    assert_eq!(
        get(&nested, "/admin/locks/").await.headers[header::LOCATION],
        "list"
    );
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
async fn the_longest_held_comes_first_and_pages_have_all() {
    let locks = memory().await;
    let mut guards = Vec::new();
    for number in (0..120).rev() {
        let options = LockOptions::new().function(if number % 60 == 0 { "by the dozen" } else { "by" });
        guards.push(
            locks
                .lock(format!("key {number:03}"))
                .options(&options)
                .acquire()
                .await
                .unwrap(),
        );
    }
    let app: Router = router(locks, Access::read_only());
    for (begin, first) in [
        ("/list", "key 119"),
        ("/list?show=all", "key 000"),
        ("/list?prefix=key+0", "key 099"),
        ("/list?holder=by+the+dozen", "key 060"),
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
            match begin.split_once('?') {
                Some((_, search)) if search.starts_with("prefix") => (100, 100),
                Some((_, search)) if search.starts_with("holder") => (2, 2),
                _ => (120, 120),
            },
            "{begin}"
        );
    }
    for (address, count) in [
        ("/list", "120 held locks. "),
        ("/list?show=all", "120 keys. "),
        ("/list?prefix=key+119", "1 held lock. "),
        ("/list?holder=dozen", "2 held locks. "),
    ] {
        let page = get(&app, address).await.body;
        assert!(page.contains(&format!("<caption>{count}")), "{address}: {page}");
    }
    drop(guards);
}

/// Production and a test look alike otherwise, beside "Free by force".
#[tokio::test]
async fn each_page_says_which_database_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let mut tints = std::collections::BTreeSet::new();
    for name in ["production", "staging", "development", "test"] {
        let file = folder.path().join(name).display().to_string();
        let locks = LockManager::connect(&format!("sqlite://{file}")).await.unwrap();
        let app: Router = router(locks.clone(), Access::manage());
        let guard = locks.lock("a").acquire().await.unwrap();
        for address in [
            "/list",
            "/records",
            "/key?key=a",
            "/confirm?action=force-release&key=a",
        ] {
            let page = get(&app, address).await.body;
            let title = super::between(&page, "<title>", "</title>");
            assert!(title.contains(&file), "{address}: {title}");
            tints.insert(super::between(&page, "<header class=\"", "\"").to_owned());
        }
        guard.release().await.unwrap();
    }
    assert!(tints.len() > 1, "{tints:?}");
}

/// Somebody must decide, and is told how.
#[tokio::test]
async fn a_run_that_has_crashed_is_told_with_what_to_do() {
    let locks = LockManager::builder(dblock::store::MemoryStore::new())
        .table("ops.locks")
        .namespace("shop")
        .build()
        .await
        .unwrap();
    let app: Router = router(locks.clone(), Access::read_only());
    let options = RunOptions::new(Duration::from_hours(1), OnCrash::Stop);
    let silent = async |run: dblock::Run| {
        run.leave_in_doubt();
        Err::<(), _>(dblock::LockError::NoManager)
    };
    locks
        .run_once("pay 1", options.clone(), silent)
        .await
        .unwrap_err();
    let (inside, entered) = tokio::sync::oneshot::channel();
    let runs = locks.clone();
    let run = tokio::spawn(async move {
        let body = async |_| {
            inside.send(()).unwrap();
            std::future::pending::<Result<(), dblock::LockError>>().await
        };
        runs.run_once("pay:2", options, body).await
    });
    entered.await.unwrap();
    let all = get(&app, "/records").await.body;
    assert!(
        all.contains(">crashed<") && all.contains(">running<") && !all.contains("processing"),
        "{all}"
    );
    let crashed = get(&app, "/records?state=crashed").await.body;
    assert!(
        crashed.contains("pay 1") && !crashed.contains("pay:2"),
        "{crashed}"
    );
    let key = get(&app, "/key?key=pay+1").await.body;
    assert!(
        key.contains("dblock --table ops.locks --namespace shop records resolve --run-again -- 'pay 1'"),
        "{key}"
    );
    assert!(!get(&app, "/key?key=pay:2").await.body.contains("What to do"));
    run.abort();
}

#[tokio::test]
async fn a_keys_page_tells_what_the_row_and_the_record_have() {
    let locks = memory().await;
    let app: Router = router(locks.clone(), Access::read_only());
    assert!(get(&app, "/key?key=a").await.body.contains("This key has no row"));
    let guard = locks.lock("a").acquire().await.unwrap();
    let row = locks.admin().get("a").await.unwrap().unwrap();
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
async fn a_deadlock_is_marked() {
    let backend = Backend::new(Kind::Sqlite).await.expect("it needs no server");
    let (one, two) = (backend.manager().await, backend.manager().await);
    let [first, second] = deadlock(one.clone(), two);
    let app: Router = router(one, Access::read_only());
    let marked = async {
        while get(&app, "/list").await.body.matches(" (deadlock)").count() < 2 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), marked)
        .await
        .expect("both are marked");
    first.abort();
    second.abort();
}

#[tokio::test]
async fn those_who_share_a_key_are_counted_and_named() {
    let locks = memory().await;
    let share = async |locks: &LockManager, function| {
        let options = LockOptions::new().function(function).shared();
        locks.lock("catalog").options(&options).acquire().await.unwrap()
    };
    let first = share(&locks, "reads").await;
    let app: Router = router(locks.clone(), Access::manage());
    let page = get(&app, "/list").await.body;
    assert!(page.contains(" reads (shared)"), "{page}");
    let rest = [share(&locks, "reads too").await, share(&locks, "reads too").await];
    // The row follows those who enter in one process.
    let inside = async || {
        let row = locks.admin().get("catalog").await.unwrap().unwrap();
        row.reentrant_count
    };
    while inside().await < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let page = get(&app, "/list").await.body;
    assert!(page.contains("3 share it"), "{page}");
    assert!(get(&app, "/list?holder=reads").await.body.contains("catalog"));
    let key = get(&app, "/key?key=catalog").await.body;
    assert!(key.contains("Shared by"), "{key}");
    assert!(key.contains("3 times, lease ends in"), "{key}");
    assert!(!key.contains("<dt>Owner</dt>"), "{key}");
    let question = get(&app, "/confirm?action=revoke&key=catalog").await.body;
    assert!(question.contains(" and 2 others"), "{question}");
    drop((first, rest));
}

#[tokio::test]
async fn a_store_that_fails_is_told_with_a_remedy() {
    let locks = memory().await;
    locks.shutdown(Duration::ZERO).await;
    let app: Router = router(locks, Access::read_only());
    let page = get(&app, "/list").await;
    assert_eq!(page.status, StatusCode::SERVICE_UNAVAILABLE, "{}", page.body);
    assert!(page.body.contains("role=\"alert\""), "{}", page.body);
    // It is there again as soon as the database is.
    assert!(page.body.contains("http-equiv=\"refresh\""), "{}", page.body);
    assert!(
        !get(&app, "/key").await.body.contains("http-equiv"),
        "asking again would not help"
    );
    // The stream ends, so that a server that waits for its connections can stop.
    assert_eq!(get(&app, "/list-events").await.body, "");
}

/// The page is for people who operate it, and cannot build a manager.
#[tokio::test]
async fn without_tables_the_page_says_what_to_run() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("a.db").display());
    let locks = LockManager::builder_for_url(&url).unwrap();
    let app = router(
        locks.auto_migrate(false).build_lazy().unwrap(),
        Access::read_only(),
    );
    let answer = get(&app, "/list").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(
        answer.body.contains("is not there; run `dblock migrate`") && !answer.body.contains("LockManager"),
        "{}",
        answer.body
    );
}

/// Nobody can free it, so no button says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_transaction_keeps_is_held() {
    let Some(backend) = Backend::new(Kind::Postgres).await else {
        return;
    };
    let locks = backend.manager().await;
    let guard = locks.lock("order:7").acquire().await.unwrap();
    guard.release().await.unwrap();
    let app: Router = router(locks, Access::manage());
    let mut tx = Transaction::begin(&backend).await;
    let lock = format!(
        "SELECT 1 FROM {} WHERE lock_key = 'order:7' FOR UPDATE",
        backend.table
    );
    tx.execute(lock).await;
    let list = get(&app, "/list").await.body;
    assert!(
        list.contains("order:7") && list.contains("an open transaction (session "),
        "{list}"
    );
    let key = get(&app, "/key?key=order:7").await.body;
    assert!(key.contains("Kept by") && key.contains("state held"), "{key}");
    assert!(key.contains("class=\"actions\" hidden"), "{key}");
    let question = get(&app, "/confirm?action=revoke&key=order:7").await.body;
    assert!(
        question.contains("It alone can free the key") && !question.contains("<form method=\"post\""),
        "{question}"
    );
    tx.commit().await;
    let list = get(&app, "/list").await.body;
    assert!(!list.contains("order:7"), "{list}");
    backend.clean_up().await;
}
