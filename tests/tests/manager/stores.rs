//! A store that cannot work says so, as itself: never as busy, never as acquired, and never with a password.

use std::fmt::Debug;
use std::time::Duration;

use dblock::open;
use dblock::store::{Acquire, Action, Request, StoreErrorKind};
use dblock::{Key, LockError, LockManager, StoreSource};
use dblock_conformance::Fixture as _;
use dblock_tests::backend::Place;
use dblock_tests::{Backend, Kind, on_every_store};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{MySqlPool, PgPool, SqlitePool};
use tokio::time::Instant;
use uuid::Uuid;

use crate::{LONG, RENEWED, long, patient};

on_every_store!(databases:
    an_older_or_newer_schema_names_the_remedy,
    a_database_that_is_not_there_is_told_at_once,
    a_database_that_is_not_there_is_tried_until_the_wait_is_over,
    a_database_that_may_not_be_written_refuses,
    a_full_pool_stops_nothing,
);
on_every_store!(servers: a_wrong_password_is_told_and_never_shown, a_missing_database_is_told);

const SECRET: &str = "s3cret-of-nobody";

/// The error of the store, which must be about no lock state.
#[track_caller]
fn store_error<T: Debug>(result: Result<T, LockError>) -> dblock::store::StoreError {
    let error = result.unwrap_err();
    assert!(
        error.is_store() && !error.is_busy() && !error.is_lost(),
        "{error:?}"
    );
    match error {
        LockError::Store { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

async fn an_older_or_newer_schema_names_the_remedy(backend: Backend) {
    for (version, min_client, remedy) in [(0, 0, "migrate"), (99, 99, "upgrade the dblock crate")] {
        let change = format!("UPDATE {{table}}_version SET version = {version}, min_client = {min_client}");
        backend.execute(&change).await;
        let error = store_error(backend.builder().build().await);
        assert_eq!(error.kind(), StoreErrorKind::Schema);
        assert!(error.to_string().contains(remedy), "{error}");
    }
    let store = backend.store().await;
    let error = store.migrate().await.unwrap_err();
    assert!(error.to_string().contains("upgrade the dblock crate"), "{error}");
    backend
        .execute("UPDATE {table}_version SET version = 99, min_client = 1")
        .await;
    store.migrate().await.unwrap();
    backend
        .manager()
        .await
        .lock("key")
        .options(&long())
        .run(async {})
        .await
        .unwrap();
    // The other table has the version of one that is gone.
    backend.execute("DROP TABLE {table}").await;
    let error = store_error(backend.builder().build().await);
    assert_eq!(error.kind(), StoreErrorKind::Schema);
    assert!(error.to_string().contains("not there"), "{error}");
}

/// A database of the backend's kind that is not there.
fn nowhere(backend: &Backend) -> StoreSource {
    // Nobody listens there, and no connection is given it.
    let port = 1;
    match backend.place() {
        Place::Postgres(..) => {
            let options = PgConnectOptions::new()
                .host("127.0.0.1")
                .port(port)
                .password(SECRET);
            PgPool::connect_lazy_with(options).into()
        }
        Place::MySql(..) => {
            let options = MySqlConnectOptions::new()
                .host("127.0.0.1")
                .port(port)
                .password(SECRET);
            MySqlPool::connect_lazy_with(options).into()
        }
        Place::Sqlite(_, folder) => {
            let options = SqliteConnectOptions::new().filename(folder.path().join("missing/locks.db"));
            SqlitePool::connect_lazy_with(options).into()
        }
        Place::Memory(_) => unreachable!("memory is always there"),
    }
}

async fn a_database_that_is_not_there_is_told_at_once(backend: Backend) {
    let error = store_error(LockManager::builder(nowhere(&backend)).build().await);
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
    let locks = LockManager::builder(nowhere(&backend)).build_lazy().unwrap();
    let since = Instant::now();
    let refused = locks.lock("key").options(&long()).acquire().await.unwrap_err();
    assert_eq!(refused.key().unwrap().as_str(), "key");
    assert!(refused.is_retryable());
    store_error::<()>(Err(refused));
    store_error(locks.lock("key").options(&long()).try_acquire().await);
    assert!(since.elapsed() < Duration::from_secs(8));
    let health = locks.health();
    assert!(
        health.failing_for.is_some() && health.last_error.is_some(),
        "{health:?}"
    );
    assert_eq!(health.last_success, None);
}

async fn a_database_that_is_not_there_is_tried_until_the_wait_is_over(backend: Backend) {
    let locks = LockManager::builder(nowhere(&backend)).build_lazy().unwrap();
    let wait = Duration::from_secs(3);
    let since = Instant::now();
    match locks.lock("key").options(&long()).wait(wait).acquire().await {
        Err(LockError::Store {
            key, waited, source, ..
        }) => {
            assert_eq!(key.unwrap().as_str(), "key");
            assert!(waited >= wait, "{waited:?}");
            assert_eq!(source.kind(), StoreErrorKind::Unreachable, "{source}");
        }
        other => panic!("{other:?}"),
    }
    assert!(since.elapsed() >= wait && since.elapsed() < wait + Duration::from_secs(10));
}

async fn a_database_that_may_not_be_written_refuses(backend: Backend) {
    let mut user = None;
    let source: StoreSource = match backend.place() {
        Place::Postgres(_, url) => {
            let options: PgConnectOptions = url.parse().unwrap();
            PgPool::connect_lazy_with(options.options([("default_transaction_read_only", "on")])).into()
        }
        Place::MySql(_, url) => {
            // The test's own user may write even on a read-only server.
            let reader = format!("r{}", fastrand::u32(..));
            backend
                .execute(&format!("CREATE USER {reader} IDENTIFIED BY '{SECRET}'"))
                .await;
            for table in ["{table}", "{table}_version"] {
                backend
                    .execute(&format!("GRANT SELECT ON {table} TO {reader}"))
                    .await;
            }
            let options: MySqlConnectOptions = url.parse().unwrap();
            let options = options.username(&reader).password(SECRET);
            user = Some(reader);
            MySqlPool::connect_lazy_with(options).into()
        }
        Place::Sqlite(_, folder) => {
            let options = SqliteConnectOptions::new()
                .filename(folder.path().join("locks.db"))
                .read_only(true);
            SqlitePool::connect_lazy_with(options).into()
        }
        Place::Memory(_) => unreachable!("memory can be written"),
    };
    let locks = LockManager::builder(source)
        .table(&backend.table)
        .build()
        .await
        .unwrap();
    for options in [long(), long().wait(Duration::from_secs(5))] {
        let since = Instant::now();
        let error = store_error(locks.lock("key").options(&options).acquire().await);
        // A PostgreSQL that is read-only may be a standby, and another one may take writes soon.
        let kind = match backend.kind() {
            Kind::Postgres => StoreErrorKind::Unreachable,
            _ => StoreErrorKind::Refused,
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(!format!("{error} {error:?}").contains(SECRET));
        assert!(since.elapsed() < LONG / 2, "waiting does not help");
    }
    assert_eq!(backend.row("key").await, None);
    if let Some(user) = user {
        backend.execute(&format!("DROP USER {user}")).await;
    }
}

async fn a_full_pool_stops_nothing(backend: Backend) {
    // The application's pool has one connection, and the application has it.
    let (locks, taken): (LockManager, Box<dyn std::any::Any>) = match backend.kind() {
        Kind::Postgres => {
            let pool = sqlx::postgres::PgPoolOptions::new().max_connections(1);
            let pool = pool.connect(&backend.url().unwrap()).await.unwrap();
            let builder = LockManager::builder(&pool).table(&backend.table);
            let taken = pool.acquire().await.unwrap();
            (builder.build().await.unwrap(), Box::new(taken))
        }
        Kind::MySql => {
            let pool = sqlx::mysql::MySqlPoolOptions::new().max_connections(1);
            let pool = pool.connect(&backend.url().unwrap()).await.unwrap();
            let builder = LockManager::builder(&pool).table(&backend.table);
            let taken = pool.acquire().await.unwrap();
            (builder.build().await.unwrap(), Box::new(taken))
        }
        _ => {
            let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
            let pool = pool.connect(&backend.url().unwrap()).await.unwrap();
            let builder = LockManager::builder(&pool).table(&backend.table);
            let taken = pool.acquire().await.unwrap();
            (builder.build().await.unwrap(), Box::new(taken))
        }
    };
    let held = locks.lock("key").options(&long()).ttl(RENEWED).run(async {
        let granted = backend.the_row("key").await;
        let renewed = backend
            .until("key", LONG, |row| row.expire_at > granted.expire_at)
            .await;
        assert_eq!(renewed.lease_id, granted.lease_id);
    });
    held.await.unwrap();
    assert!(backend.the_row("key").await.is_free());
    drop(taken);
}

/// The backend's URL with another password and, if given, another database.
fn changed(backend: &Backend, password: Option<&str>, database: Option<&str>) -> String {
    let url = backend.url().unwrap();
    let (scheme, rest) = url.split_once("://").unwrap();
    let (login, place) = rest.rsplit_once('@').unwrap();
    let (user, old) = login.split_once(':').unwrap_or((login, ""));
    let (address, old_database) = place.split_once('/').unwrap_or((place, ""));
    format!(
        "{scheme}://{user}:{}@{address}/{}",
        password.unwrap_or(old),
        database.unwrap_or(old_database)
    )
}

async fn a_wrong_password_is_told_and_never_shown(backend: Backend) {
    let url = changed(&backend, Some(SECRET), None);
    let error = LockManager::connect(&url).await.unwrap_err();
    let source = store_error::<()>(Err(error));
    assert_eq!(source.kind(), StoreErrorKind::Refused, "{source}");
    assert!(source.to_string().contains("password"), "{source}");

    let (builder, same) = if backend.kind() == Kind::Postgres {
        let pool = PgPool::connect_lazy(&url).unwrap();
        (LockManager::builder(&pool), LockManager::builder(&pool))
    } else {
        let pool = MySqlPool::connect_lazy(&url).unwrap();
        (LockManager::builder(&pool), LockManager::builder(&pool))
    };
    let locks = same.build_lazy().unwrap();
    let since = Instant::now();
    let error = locks.lock("key").options(&patient()).acquire().await.unwrap_err();
    assert!(since.elapsed() < LONG / 2, "waiting does not help");
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let causes: Vec<String> = causes.map(|error| format!("{error} {error:?}")).collect();
    let shown = format!("{builder:?} {locks:?} {:?} {causes:?}", locks.health());
    assert!(!shown.contains(SECRET), "{shown}");
    assert_eq!(store_error::<()>(Err(error)).kind(), StoreErrorKind::Refused);
}

async fn a_missing_database_is_told(backend: Backend) {
    let url = changed(&backend, None, Some("no_such_database"));
    let error = store_error(LockManager::connect(&url).await);
    assert_eq!(error.kind(), StoreErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("no_such_database"), "{error}");
}

#[tokio::test]
async fn a_url_that_names_no_store_is_refused_without_its_password() {
    for url in [
        format!("oracle://user:{SECRET}@localhost/"),
        format!("redis://user:{SECRET}@localhost/"),
        format!("//user:{SECRET}@localhost/"),
        format!("postgres://user:{SECRET}@localhost:notaport/db"),
        format!("mysql://user:{SECRET}@localhost:notaport/db"),
        String::new(),
    ] {
        let error = LockManager::connect(&url).await.unwrap_err();
        assert!(matches!(error, LockError::Invalid { .. }), "{error:?}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    }
    let error = LockManager::connect("oracle://localhost/").await.unwrap_err();
    assert!(
        error.to_string().contains("oracle") && error.to_string().contains("postgres"),
        "{error}"
    );
    let error = LockManager::connect("redis://localhost/").await.unwrap_err();
    assert!(error.to_string().contains("dblock_redis::register()"), "{error}");
    let error = LockManager::connect("zookeeper://localhost/").await.unwrap_err();
    assert!(
        error.to_string().contains("dblock_zookeeper::register()"),
        "{error}"
    );
}

/// Beneath the manager: nothing listens there, and no such folder exists.
#[tokio::test]
async fn every_request_of_a_batch_is_told_the_cause() {
    let file = SqliteConnectOptions::new().filename("no-such-folder/locks.db");
    let stores = [
        open::postgres::open("postgres://a@127.0.0.1:1/a".parse().unwrap(), "t"),
        open::mysql::open("mysql://a@127.0.0.1:1/a".parse().unwrap(), "t"),
        open::sqlite::open(file, "t"),
    ];
    let requests = ["a", "b"].map(|key| {
        Request::new(
            Key::new(None, key).unwrap(),
            Uuid::now_v7(),
            Action::Acquire(Acquire::new(Uuid::now_v7(), LONG, "test")),
        )
    });
    for store in stores {
        let answers = store.unwrap().apply(&requests).await;
        assert_eq!(answers.len(), 2);
        for answer in answers {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unreachable);
            assert!(std::error::Error::source(&error).is_some(), "{error:?}");
        }
    }
}
