//! Faults of the server.

use std::time::Duration;

use sqlx::{Connection as _, MySqlConnection, PgConnection, SqliteConnection};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use super::{Injector, millis, redis};
use crate::fault::Fault;
use crate::target::StoreKind;

/// How long a connection or a statement of the administrator may take.
const TIMEOUT: Duration = Duration::from_secs(3);

/// More connections than the server takes.
const TOO_MANY: usize = 200;

impl Injector<'_> {
    pub(super) async fn on_server(&self, fault: &Fault) -> anyhow::Result<bool> {
        let Some(server) = &self.target.server else {
            return Ok(false);
        };
        // One fault of the server at a time.
        let Ok(mut server) = server.try_lock() else {
            return Ok(false);
        };
        match *fault {
            Fault::KillServer => {
                server.kill();
                server.restart().await?;
            }
            Fault::StopServer => {
                server.stop_at_once();
                server.restart().await?;
            }
            Fault::SlowCommits { ms } => self.hold_commits(millis(ms)).await?,
            Fault::Terminate { all } => {
                let done = timeout(TIMEOUT, self.terminate(all)).await;
                return Ok(matches!(done, Ok(Ok(1..))));
            }
            Fault::ExhaustServer { ms } => return Ok(self.exhaust_server(millis(ms)).await),
            _ => unreachable!("not a fault of the server"),
        }
        Ok(true)
    }

    /// Lets no commit end for so long. The statements are carried out and their rows locked, as with a slow
    /// disk, or a standby that a commit waits for.
    async fn hold_commits(&self, length: Duration) -> anyhow::Result<()> {
        if self.target.store == StoreKind::Redis {
            redis::hold_writes(self.target.url(), length).await?;
            sleep(length).await;
        } else if self.target.store == StoreKind::Postgres {
            let mut admin = PgConnection::connect(self.target.url()).await?;
            wait_for_standby(&mut admin, "nobody").await?;
            sleep(length).await;
            wait_for_standby(&mut admin, "").await?;
            admin.close().await?;
        } else {
            let mut admin = MySqlConnection::connect(self.target.url()).await?;
            for stage in ["START", "BLOCK_COMMIT"] {
                stage_backup(&mut admin, stage).await?;
            }
            sleep(length).await;
            stage_backup(&mut admin, "END").await?;
            admin.close().await?;
        }
        Ok(())
    }

    /// Ends sessions, and returns how many.
    async fn terminate(&self, all: bool) -> anyhow::Result<usize> {
        let limit = if all { 1_000 } else { 1 };
        if self.target.store == StoreKind::Redis {
            return redis::terminate(self.target.url(), limit).await;
        }
        if self.target.store == StoreKind::Postgres {
            let mut admin = PgConnection::connect(self.target.url()).await?;
            let ended: Vec<bool> = sqlx::query_scalar(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE \
                 pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY random() LIMIT $1) AS chosen",
            )
            .bind(i64::try_from(limit)?)
            .fetch_all(&mut admin)
            .await?;
            admin.close().await?;
            return Ok(ended.into_iter().filter(|ended| *ended).count());
        }
        let mut admin = MySqlConnection::connect(self.target.url()).await?;
        let sessions: Vec<u64> = sqlx::query_scalar(
            "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE id <> CONNECTION_ID() \
             AND command <> 'Daemon' ORDER BY RAND() LIMIT ?",
        )
        .bind(u32::try_from(limit)?)
        .fetch_all(&mut admin)
        .await?;
        let mut ended = 0;
        for session in sessions {
            // The session may have ended meanwhile.
            let kill = sqlx::AssertSqlSafe(format!("KILL CONNECTION {session}"));
            ended += usize::from(sqlx::raw_sql(kill).execute(&mut admin).await.is_ok());
        }
        admin.close().await?;
        Ok(ended)
    }

    /// Opens connections until the server refuses more, and keeps them for so long.
    async fn exhaust_server(&self, length: Duration) -> bool {
        match self.target.store {
            StoreKind::Redis => redis::exhaust(self.target.url(), TOO_MANY, length).await,
            StoreKind::Postgres => exhaust::<PgConnection>(self.target.url(), length).await,
            _ => exhaust::<MySqlConnection>(self.target.url(), length).await,
        }
    }

    /// Keeps every other writer out of the file for so long.
    pub(super) async fn lock_file(&self, length: Duration) -> anyhow::Result<bool> {
        let disk = self.target.disk.as_ref().map(Mutex::try_lock);
        if matches!(disk, Some(Err(_))) {
            return Ok(false);
        }
        let mut connection = SqliteConnection::connect(self.target.url()).await?;
        // Fails if others keep the file locked for too long.
        if sqlx::raw_sql("BEGIN IMMEDIATE")
            .execute(&mut connection)
            .await
            .is_err()
        {
            return Ok(false);
        }
        sleep(length).await;
        sqlx::raw_sql("ROLLBACK").execute(&mut connection).await?;
        connection.close().await?;
        Ok(true)
    }
}

/// Makes every commit wait for a standby of this name, or for none if the name is empty.
async fn wait_for_standby(admin: &mut PgConnection, name: &str) -> sqlx::Result<()> {
    let set = format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'");
    sqlx::raw_sql(sqlx::AssertSqlSafe(set))
        .execute(&mut *admin)
        .await?;
    sqlx::raw_sql("SELECT pg_reload_conf()")
        .execute(&mut *admin)
        .await?;
    Ok(())
}

/// MariaDB blocks commits at this stage of a backup.
async fn stage_backup(admin: &mut MySqlConnection, stage: &str) -> sqlx::Result<()> {
    let set = sqlx::AssertSqlSafe(format!("BACKUP STAGE {stage}"));
    sqlx::raw_sql(set).execute(admin).await?;
    Ok(())
}

async fn exhaust<C: sqlx::Connection>(url: &str, length: Duration) -> bool {
    let mut taken = Vec::new();
    while taken.len() < TOO_MANY {
        match timeout(TIMEOUT, C::connect(url)).await {
            Ok(Ok(connection)) => taken.push(connection),
            _ => break,
        }
    }
    let exhausted = taken.len() < TOO_MANY;
    sleep(length).await;
    for connection in taken {
        // A connection that broke meanwhile is as good as closed.
        let _ = timeout(TIMEOUT, connection.close()).await;
    }
    exhausted
}
