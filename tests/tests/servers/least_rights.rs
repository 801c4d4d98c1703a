//! A database role with few rights does for everything but migrating.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use dblock::open;
use dblock::store::{Store, StoreErrorKind};
use dblock::{InspectFilter, LockError, LockManager, LockOptions, StoreSource};
use dblock_tests::backend::Place;
use dblock_tests::{Backend, on_every_store};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Connection, MySqlPool, PgPool};

on_every_store!(servers: a_role_that_may_only_use_the_two_tables_does_everything);

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// A lease whose renewals may be late by five seconds on a machine that stalls.
const RENEWED: Duration = Duration::from_secs(9);

/// The shortest lease.
const SHORT: Duration = Duration::from_secs(1);

const PASSWORD: &str = "of-little-worth";

/// A role of the test's own.
struct Role {
    name: String,
    backend: Backend,
}

impl Role {
    /// Grants what docs/setup.md and SECURITY.md say, and no more.
    async fn create(backend: &Backend) -> Self {
        let name = format!("least_{:08x}", fastrand::u32(..));
        let create = match backend.place() {
            Place::Postgres(..) => format!("CREATE ROLE {name} LOGIN NOINHERIT PASSWORD '{PASSWORD}'"),
            _ => format!("CREATE USER {name} IDENTIFIED BY '{PASSWORD}'"),
        };
        let role = Self {
            name,
            backend: backend.clone(),
        };
        backend.execute(&create).await;
        role.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {role}")
            .await;
        role.execute("GRANT SELECT ON {table}_version TO {role}").await;
        role
    }

    async fn execute(&self, sql: &str) {
        self.backend.execute(&sql.replace("{role}", &self.name)).await;
    }

    async fn drop(self) {
        if matches!(self.backend.place(), Place::Postgres(..)) {
            self.execute("DROP OWNED BY {role}").await;
        }
        self.execute("DROP USER {role}").await;
    }

    fn postgres(&self, url: &str) -> PgConnectOptions {
        let options: PgConnectOptions = url.parse().unwrap();
        options.username(&self.name).password(PASSWORD)
    }

    fn mysql(&self, url: &str) -> MySqlConnectOptions {
        let options: MySqlConnectOptions = url.parse().unwrap();
        options.username(&self.name).password(PASSWORD)
    }

    /// The application's pool, which has the same rights.
    fn source(&self) -> StoreSource {
        match self.backend.place() {
            Place::Postgres(_, url) => PgPool::connect_lazy_with(self.postgres(url)).into(),
            Place::MySql(_, url) => MySqlPool::connect_lazy_with(self.mysql(url)).into(),
            _ => unreachable!("only servers have roles"),
        }
    }

    fn store(&self) -> Arc<dyn Store> {
        let table = &self.backend.table;
        match self.backend.place() {
            Place::Postgres(_, url) => open::postgres::open(self.postgres(url), table).unwrap(),
            Place::MySql(_, url) => open::mysql::open(self.mysql(url), table).unwrap(),
            _ => unreachable!("only servers have roles"),
        }
    }

    async fn manager(&self) -> LockManager {
        // Many services migrate at each start. There is nothing to do then, and nothing to be allowed.
        let builder = LockManager::builder(self.source()).table(&self.backend.table);
        builder.auto_migrate(true).build().await.unwrap()
    }

    /// The fence check in a transaction of the role's.
    async fn verify(&self, guard: &dblock::LockGuard) {
        match self.backend.place() {
            Place::Postgres(_, url) => {
                let mut connection = self.postgres(url).connect().await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                guard.verify_in(&mut transaction).await.unwrap();
            }
            Place::MySql(_, url) => {
                let mut connection = self.mysql(url).connect().await.unwrap();
                let mut transaction = connection.begin().await.unwrap();
                guard.verify_in(&mut transaction).await.unwrap();
            }
            _ => unreachable!("only servers have roles"),
        }
    }
}

#[track_caller]
fn assert_refused(error: &LockError, remedy: &str) {
    let LockError::Store { source, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!(source.kind(), StoreErrorKind::Refused, "{source}");
    assert!(source.to_string().contains(remedy), "{source}");
}

async fn a_role_that_may_only_use_the_two_tables_does_everything(backend: Backend) {
    let role = Role::create(&backend).await;
    let (locks, other) = (role.manager().await, role.manager().await);
    let (long, renewed) = (LockOptions::new().ttl(LONG), LockOptions::new().ttl(RENEWED));

    // Granted, busy, re-entered, renewed, checked, waited for, released.
    let held = locks.lock("key").options(&renewed).run(async {
        assert!(
            other
                .lock("key")
                .options(&renewed)
                .acquire()
                .await
                .unwrap_err()
                .is_busy()
        );
        locks.lock("key").options(&renewed).run(async {}).await.unwrap();
        let expire_at = backend.the_row("key").await.expire_at;
        backend.until("key", LONG, |row| row.expire_at > expire_at).await;
    });
    let waited = async {
        backend.until("key", LONG, |_| true).await;
        other
            .lock("key")
            .options(&long)
            .wait(LONG)
            .acquire()
            .await
            .unwrap()
    };
    let (held, guard) = tokio::join!(held, waited);
    held.unwrap();
    role.verify(&guard).await;

    // The operators' calls.
    assert_eq!(locks.admin().list(InspectFilter::new()).await.unwrap().len(), 1);
    assert!(locks.admin().revoke("key").await.unwrap());
    assert!(locks.admin().force_release("key").await.unwrap());
    drop(guard);

    // A takeover.
    backend.die_inside("left", SHORT).await;
    let taken = locks
        .lock("left")
        .options(&long)
        .wait(LONG)
        .acquire()
        .await
        .unwrap();
    taken.release().await.unwrap();

    // Housekeeping, of a row that looks as if nobody had used it for decades.
    backend
        .execute(
            "UPDATE {table} SET expire_at = 1, wanted_until = 0, fence_token = 1, fence_ceiling = 1 WHERE lock_key = 'left'",
        )
        .await;
    let purged = role
        .store()
        .purge(Duration::from_hours(24), None, 100)
        .await
        .unwrap();
    assert_eq!(purged.rows, 1);
    assert_eq!(backend.row("left").await, None);

    // One right less.
    role.execute("REVOKE UPDATE ON {table} FROM {role}").await;
    let refused = locks.lock("key").options(&long).acquire().await.unwrap_err();
    assert_refused(&refused, "SELECT, INSERT, UPDATE and DELETE on the lock table");
    backend.execute("DROP TABLE {table}_version").await;
    assert_refused(&locks.admin().migrate().await.unwrap_err(), "CREATE");
    role.drop().await;
}
