//! The load of a subject as a server saw it: statements and connections.

use anyhow::Context as _;
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::{Place, Servers, info_number, text};

/// Makes `pg_stat_statements` readable where the server has loaded it.
pub(super) async fn install(connection: &mut PgConnection) -> anyhow::Result<()> {
    if loaded(connection).await? {
        sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            .execute(connection)
            .await?;
    } else {
        eprintln!("PostgreSQL has not loaded pg_stat_statements: its statements are not counted");
    }
    Ok(())
}

async fn loaded(connection: &mut PgConnection) -> sqlx::Result<bool> {
    let text = "SELECT current_setting('shared_preload_libraries') LIKE '%pg_stat_statements%'";
    sqlx::query_scalar(text).fetch_one(connection).await
}

impl Servers {
    /// Whether connections that are opened from now on have their statements counted. Off while time is
    /// measured, because PostgreSQL pays for it.
    pub(crate) async fn count_statements(&mut self, place: Place, on: bool) -> anyhow::Result<()> {
        if place == Place::Postgres {
            let database = self.database.clone();
            let connection = self.postgres()?;
            if loaded(connection).await? {
                let track = if on { "top" } else { "none" };
                let set = format!("ALTER DATABASE {database} SET pg_stat_statements.track = '{track}'");
                sqlx::raw_sql(AssertSqlSafe(set)).execute(connection).await?;
            }
        }
        Ok(())
    }

    /// Statements that the server has seen so far; `None` where nobody counts. Each call adds the same
    /// number, which [`statements_since`](Self::statements_since) takes off.
    pub(crate) async fn statements(&mut self, place: Place) -> anyhow::Result<Option<u64>> {
        Ok(match place {
            Place::Postgres => {
                let database = self.database.clone();
                let connection = self.postgres()?;
                if !loaded(connection).await? {
                    return Ok(None);
                }
                let text = "SELECT coalesce(sum(s.calls), 0)::bigint FROM pg_stat_statements s
                    JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = $1";
                let calls: i64 = sqlx::query_scalar(text)
                    .bind(database)
                    .fetch_one(connection)
                    .await?;
                Some(u64::try_from(calls)?)
            }
            Place::MySql => {
                let row = sqlx::raw_sql("SHOW GLOBAL STATUS LIKE 'Questions'")
                    .fetch_one(self.mysql()?)
                    .await?;
                let questions: String = row.try_get(1)?;
                Some(questions.parse()?)
            }
            Place::Redis => {
                let info: String = redis::cmd("INFO").arg("stats").query_async(self.redis()?).await?;
                Some(info_number(&info, "total_commands_processed")?)
            }
            Place::ZooKeeper => {
                let said = text::ask(self.zookeeper()?, "srvr").await?;
                Some(info_number(&said, "Received")?)
            }
            Place::Etcd => Some(calls(&text::get(self.etcd()?, "/metrics").await?)),
            Place::Sqlite | Place::Memory => None,
        })
    }

    /// Statements that the subject sent since `before`, an answer of [`statements`](Self::statements).
    pub(crate) async fn statements_since(
        &mut self,
        place: Place,
        before: Option<u64>,
    ) -> anyhow::Result<Option<u64>> {
        let now = self.statements(place).await?;
        // These count the question itself.
        let ours = u64::from(matches!(place, Place::MySql | Place::Redis | Place::ZooKeeper));
        Ok(now
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before + ours)))
    }

    /// Connections in our database.
    pub(crate) async fn connections(&mut self, place: Place) -> anyhow::Result<u64> {
        let database = self.database.clone();
        Ok(match place {
            Place::Postgres => {
                let text = "SELECT count(*) FROM pg_stat_activity WHERE datname = $1 AND backend_type = 'client backend'";
                let count: i64 = sqlx::query_scalar(text)
                    .bind(database)
                    .fetch_one(self.postgres()?)
                    .await?;
                u64::try_from(count)?
            }
            Place::MySql => {
                let text = "SELECT count(*) FROM information_schema.processlist WHERE db = ?";
                let count: i64 = sqlx::query_scalar(text)
                    .bind(database)
                    .fetch_one(self.mysql()?)
                    .await?;
                u64::try_from(count)?
            }
            Place::Redis => {
                let info: String = redis::cmd("INFO")
                    .arg("clients")
                    .query_async(self.redis()?)
                    .await?;
                // Less our own.
                info_number(&info, "connected_clients")?.saturating_sub(1)
            }
            Place::ZooKeeper => text::connections(self.zookeeper()?)?,
            Place::Etcd => text::connections(self.etcd()?)?,
            Place::Sqlite => open_files(&self.file())?,
            Place::Memory => 0,
        })
    }
}

impl Servers {
    /// The id of the process that serves our own connection.
    pub(crate) async fn backend(&mut self, place: Place) -> anyhow::Result<u32> {
        anyhow::ensure!(
            place == Place::Postgres,
            "only PostgreSQL has a process for each connection"
        );
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(self.postgres()?)
            .await?;
        Ok(u32::try_from(pid)?)
    }
}

/// The calls in the metrics of etcd. A stream counts once, however much is asked on it.
fn calls(metrics: &str) -> u64 {
    let lines = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("grpc_server_started_total"));
    let counts = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok());
    counts.sum()
}

/// How often this process has the file open: once for each connection.
fn open_files(file: &std::path::Path) -> anyhow::Result<u64> {
    let Ok(file) = file.canonicalize() else {
        return Ok(0);
    };
    let open = std::fs::read_dir("/proc/self/fd").context("cannot list open files")?;
    let ours = open
        .flatten()
        .filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == file));
    Ok(ours.count() as u64)
}
