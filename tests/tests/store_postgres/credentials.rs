//! A password that changes while the program runs.

use std::sync::{Arc, Mutex};

use dblock::{InspectFilter, LockManager, StoreSource};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::bench::Bench;

/// A new password for the role, whose sessions end.
async fn change(bench: &Bench, role: &str, password: &str) {
    bench
        .run(&format!(
            "DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
             GRANT SELECT ON {{t}}_version TO {role}; GRANT SELECT, INSERT, UPDATE, DELETE ON {{t}} TO {role};
             ALTER ROLE {role} PASSWORD '{password}';
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'"
        ))
        .await;
}

fn options(bench: &Bench, role: &str, password: &str) -> PgConnectOptions {
    let options: PgConnectOptions = bench.url.parse().unwrap();
    options.username(role).password(password)
}

#[tokio::test]
async fn connections_take_the_pools_options_of_the_moment() {
    let Some(bench) = Bench::new("credentials").await else {
        return;
    };
    let role = "dblock_rotating";
    change(&bench, role, "first").await;
    let pool = PgPoolOptions::new().connect_lazy_with(options(&bench, role, "first"));
    let locks = LockManager::builder(&pool)
        .table(&bench.table)
        .build()
        .await
        .unwrap();
    change(&bench, role, "second").await;
    let error = locks.admin().list(InspectFilter::new()).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("password"), "{said}");
    pool.set_connect_options(options(&bench, role, "second"));
    locks.admin().list(InspectFilter::new()).await.unwrap();
}

#[tokio::test]
async fn a_provider_is_asked_for_each_connection() {
    let Some(bench) = Bench::new("provider").await else {
        return;
    };
    let role = "dblock_provided";
    change(&bench, role, "first").await;
    // The password as an agent knows it.
    let known = Arc::new(Mutex::new(Some("first")));
    let source = StoreSource::postgres({
        let (known, options) = (Arc::clone(&known), options(&bench, role, ""));
        move || {
            let password = *known.lock().unwrap();
            let options = options.clone();
            async move {
                password
                    .map(|password| options.password(password))
                    .ok_or("the agent is away")
            }
        }
    });
    let locks = LockManager::builder(source)
        .table(&bench.table)
        .build()
        .await
        .unwrap();
    *known.lock().unwrap() = None;
    change(&bench, role, "second").await;
    let error = locks.admin().list(InspectFilter::new()).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let said = error.to_string();
    assert!(said.contains("the agent is away"), "{said}");
    *known.lock().unwrap() = Some("second");
    locks.admin().list(InspectFilter::new()).await.unwrap();
}
