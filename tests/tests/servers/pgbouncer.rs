//! Through `PgBouncer` in transaction mode, where each transaction may meet another session of the server.
//!
//! That the store keeps its contract there is shown in `conformance.rs`, and what the log says in
//! `events.rs`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dblock::{LockManager, LockOptions};
use dblock_servers::Server;
use dblock_servers::pgbouncer::{POOL_SIZE, Setup};
use dblock_tests::own_server::pgbouncer;
use futures_util::future::{join_all, try_join_all};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, Row};
use uuid::Uuid;

/// Too long to run out during a test.
const LONG: Duration = Duration::from_secs(30);

/// A `PgBouncer` and the name of a table behind it.
struct Pooled {
    bouncer: Server,
    table: String,
}

impl Pooled {
    async fn start(setup: Setup) -> Option<Self> {
        Some(Self {
            bouncer: pgbouncer(setup).await?,
            table: format!("pooled_{}", Uuid::now_v7().simple()),
        })
    }

    async fn manager(&self) -> LockManager {
        let builder = LockManager::builder_for_url(self.bouncer.url()).unwrap();
        let builder = builder.table(&self.table).auto_migrate(true);
        builder.build().await.unwrap()
    }

    /// A connection as an application has it.
    async fn connect(&self) -> PgConnection {
        let options: PgConnectOptions = self.bouncer.url().parse().unwrap();
        options.extra_float_digits(None).connect().await.unwrap()
    }

    /// Runs `sql` in every session of the server behind it. The first column of the last row of each.
    async fn in_every_session(&self, sql: &str) -> Vec<String> {
        let mut clients = join_all((0..POOL_SIZE).map(|_| self.connect())).await;
        // Open transactions keep the sessions apart.
        for client in &mut clients {
            sqlx::raw_sql("BEGIN").execute(client).await.unwrap();
        }
        let mut found = Vec::new();
        for client in &mut clients {
            let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *client).await;
            found.extend(
                rows.unwrap()
                    .last()
                    .map(|row| row.try_get::<String, _>(0).unwrap()),
            );
            sqlx::raw_sql("COMMIT").execute(client).await.unwrap();
        }
        found
    }

    /// Every kind of statement that a manager sends, from several at once.
    async fn use_it(&self) {
        const TASKS: u32 = 12;
        let managers = join_all((0..3).map(|_| self.manager())).await;
        let (inside, entries) = (AtomicU32::new(0), AtomicU32::new(0));
        let options = LockOptions::new().ttl(LONG).wait(LONG);
        let tasks = (0..TASKS).map(|task| {
            let (locks, options) = (&managers[task as usize % managers.len()], options.clone());
            let (inside, entries) = (&inside, &entries);
            let nested = options.clone();
            locks.lock("key").options(&options).run(async move {
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                locks.lock("key").options(&nested).run(async {}).await.unwrap();
                let mut client = self.connect().await;
                let mut transaction = client.begin().await.unwrap();
                let lock = dblock::current().unwrap();
                lock.verify_in(&mut transaction).await.unwrap();
                transaction.commit().await.unwrap();
                entries.fetch_add(1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
            })
        });
        try_join_all(tasks).await.unwrap();
        assert_eq!(entries.load(Ordering::SeqCst), TASKS);

        let [locks, other, _] = &managers[..] else {
            unreachable!()
        };
        let guard = locks.lock("freed").ttl(LONG).acquire().await.unwrap();
        assert_eq!(
            other
                .admin()
                .list(dblock::InspectFilter::new())
                .await
                .unwrap()
                .len(),
            1
        );
        assert!(other.admin().revoke("freed").await.unwrap());
        assert!(other.admin().force_release("freed").await.unwrap());
        drop(guard);
    }

    async fn clean_up(self) {
        let drop = format!("DROP TABLE {0}, {0}_version", self.table);
        let client = &mut self.connect().await;
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(client).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_clients_prepared_statements_are_never_executed() {
    for setup in [Setup::Refuses, Setup::Swallows] {
        let Some(pooled) = Pooled::start(setup).await else {
            return;
        };
        drop(pooled.manager().await);
        // Another application leaves statements in the sessions, under the names that sqlx gives in every
        // client.
        let trap = format!("trap_{}", pooled.table);
        let insert = format!("INSERT INTO {trap} SELECT $1::text || $2::uuid RETURNING fell, 'freed', true");
        let prepare = |number| format!("PREPARE sqlx_s_{number} (text, uuid) AS {insert};");
        let prepare: Vec<_> = (1..9).map(prepare).collect();
        let leave = format!(
            "CREATE TABLE IF NOT EXISTS {trap} (fell text);{}",
            prepare.concat()
        );
        pooled.in_every_session(&leave).await;

        pooled.use_it().await;

        let fell = pooled
            .in_every_session(&format!("SELECT count(*)::text FROM {trap}"))
            .await;
        assert_eq!(fell, vec!["0"; POOL_SIZE]);
        let names = "SELECT coalesce(string_agg(name, ' ' ORDER BY name), '') FROM pg_prepared_statements";
        let traps = "sqlx_s_1 sqlx_s_2 sqlx_s_3 sqlx_s_4 sqlx_s_5 sqlx_s_6 sqlx_s_7 sqlx_s_8";
        assert_eq!(pooled.in_every_session(names).await, vec![traps; POOL_SIZE]);
        let client = &mut pooled.connect().await;
        let drop = AssertSqlSafe(format!("DROP TABLE {trap}"));
        sqlx::raw_sql(drop).execute(client).await.unwrap();
        pooled.clean_up().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_of_ours_stays_in_a_shared_session() {
    for setup in [Setup::Refuses, Setup::Swallows] {
        let Some(pooled) = Pooled::start(setup).await else {
            return;
        };
        pooled.use_it().await;
        for name in [
            "lock_timeout",
            "statement_timeout",
            "plan_cache_mode",
            "enable_seqscan",
        ] {
            let found = pooled.in_every_session(&format!("SHOW {name}")).await;
            let default = format!("SELECT boot_val FROM pg_settings WHERE name = '{name}'");
            assert_eq!(found, pooled.in_every_session(&default).await, "{name}");
        }
        let prepared = pooled.in_every_session("SELECT count(*)::text FROM pg_prepared_statements");
        assert_eq!(prepared.await, vec!["0"; POOL_SIZE]);
        let listening = pooled.in_every_session("SELECT count(*)::text FROM pg_listening_channels()");
        assert_eq!(listening.await, vec!["0"; POOL_SIZE]);
        pooled.clean_up().await;
    }
}
