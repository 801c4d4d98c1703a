//! The pictures in `docs/images`, made anew by
//!
//! ```sh
//! cargo test -p dblock-web --test browser -- --ignored screenshots
//! ```

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dblock::store::MemoryStore;
use dblock::{LockManager, LockOptions};
use dblock_tests::own_server;
use dblock_web::{Access, router};
use serde_json::json;

use crate::chromium::Tab;
use crate::serve;

const LOCKS: [(&str, &str); 6] = [
    ("invoice:20419", "billing::invoices::write"),
    ("order:1187", "shop::orders::settle"),
    ("order:1203", "shop::orders::settle"),
    ("nightly-report", "dblock run report.sh"),
    ("account:7", "shop::accounts::transfer"),
    ("account:12", "shop::accounts::transfer"),
];

async fn manager(store: &MemoryStore) -> LockManager {
    LockManager::builder(store.clone()).build().await.unwrap()
}

#[tokio::test]
#[ignore = "writes the pictures of the documentation"]
async fn screenshots() {
    let program = own_server::chromium().expect("a browser");
    let store = MemoryStore::new();
    let (locks, other) = (manager(&store).await, manager(&store).await);
    let mut guards = Vec::new();
    for (key, function) in LOCKS {
        guards.push(
            locks
                .lock(key)
                .options(&LockOptions::new().function(function))
                .acquire()
                .await
                .unwrap(),
        );
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let waits = LockOptions::new().wait_forever().function("shop::orders::cancel");
    let waits = tokio::spawn(async move { other.lock("order:1203").options(&waits).acquire().await });
    locks.admin().revoke("nightly-report").await.unwrap();
    let page = serve(router(locks.clone(), Access::manage())).await;

    let mut tab = Tab::open(&program).await;
    let mut take =
        async |name: &str, scheme: &str, (width, height): (u32, u32), address: &str, shown: &str| {
            tab.prefer(scheme).await;
            tab.resize(width, height).await;
            tab.visit(&format!("{page}/{address}")).await;
            tab.until_shown("Live").await;
            tab.until_shown(shown).await;
            let picture = tab
                .call(
                    "Page.captureScreenshot",
                    json!({"format": "png", "optimizeForSpeed": false}),
                )
                .await;
            let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), bytes).unwrap();
        };
    take("page-light.png", "light", (1100, 520), "list", " next, for ").await;
    take(
        "page-dark.png",
        "dark",
        (1100, 640),
        "key?key=order:1203",
        " next, for ",
    )
    .await;
    take("page-phone.png", "light", (375, 720), "list", " next, for ").await;
    waits.abort();
}
