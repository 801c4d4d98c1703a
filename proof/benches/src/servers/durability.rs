//! The settings of the servers, and the refusal to measure one that forgets commits.

use anyhow::ensure;
use serde_json::{Map, Value, json};
use sqlx::Row as _;

use super::{Place, Servers, text};

/// Settings that a durable commit needs, with the values that are durable: the servers' own defaults.
const POSTGRES: [(&str, &[&str]); 3] = [
    ("fsync", &["on"]),
    ("synchronous_commit", &["on"]),
    ("full_page_writes", &["on"]),
];
/// Besides, MariaDB's doublewrite, and a binary log that is off by default.
const MYSQL: [(&str, &[&str]); 2] = [
    ("innodb_flush_log_at_trx_commit", &["1"]),
    ("innodb_doublewrite", &["1", "ON"]),
];

impl Servers {
    /// Versions and settings that matter, for the report.
    ///
    /// # Errors
    /// When a database is set to forget commits.
    pub(crate) async fn describe(&mut self) -> anyhow::Result<Map<String, Value>> {
        let mut all = Map::new();
        if self.has(Place::Postgres) {
            let connection = self.postgres()?;
            let version: String = sqlx::query_scalar("SHOW server_version")
                .fetch_one(&mut *connection)
                .await?;
            let mut found = Map::from_iter([("version".to_owned(), json!(version))]);
            for (name, durable) in POSTGRES {
                let text = "SELECT current_setting($1)";
                let value: String = sqlx::query_scalar(text)
                    .bind(name)
                    .fetch_one(&mut *connection)
                    .await?;
                ensure!(
                    durable.contains(&value.as_str()),
                    "PostgreSQL is not durable: {name} = {value}"
                );
                found.insert(name.to_owned(), json!(value));
            }
            all.insert("postgres".to_owned(), Value::Object(found));
        }
        if self.has(Place::MySql) {
            let connection = self.mysql()?;
            let version: String = sqlx::query_scalar("SELECT VERSION()")
                .fetch_one(&mut *connection)
                .await?;
            let mut found = Map::from_iter([("version".to_owned(), json!(version))]);
            for (name, durable) in MYSQL {
                let text = "SHOW GLOBAL VARIABLES WHERE variable_name = ?";
                let row = sqlx::query(text).bind(name).fetch_one(&mut *connection).await?;
                let value: String = row.try_get(1)?;
                ensure!(
                    durable.contains(&value.as_str()),
                    "MariaDB is not durable: {name} = {value}"
                );
                found.insert(name.to_owned(), json!(value));
            }
            all.insert("mysql".to_owned(), Value::Object(found));
        }
        if self.has(Place::Redis) {
            let connection = self.redis()?;
            let info: String = redis::cmd("INFO").arg("server").query_async(connection).await?;
            let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
            let mut found = Map::from_iter([("version".to_owned(), json!(version.map(str::trim)))]);
            for name in ["save", "appendonly"] {
                let mut config = redis::cmd("CONFIG");
                let (_, value): (String, String) =
                    config.arg("GET").arg(name).query_async(connection).await?;
                found.insert(name.to_owned(), json!(value));
            }
            all.insert("redis".to_owned(), Value::Object(found));
        }
        // These wait for the disk unless they were started with options that nobody can ask them for.
        if self.has(Place::ZooKeeper) {
            let said = text::ask(self.zookeeper()?, "srvr").await?;
            let version = said
                .lines()
                .find_map(|line| line.strip_prefix("Zookeeper version: "));
            let mode = said.lines().find_map(|line| line.strip_prefix("Mode: "));
            all.insert(
                "zookeeper".to_owned(),
                json!({ "version": version, "mode": mode }),
            );
        }
        if self.has(Place::Etcd) {
            let said = text::get(self.etcd()?, "/version").await?;
            let body = said.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            let said: Value = serde_json::from_str(body).unwrap_or_default();
            all.insert("etcd".to_owned(), json!({ "version": said["etcdserver"] }));
        }
        Ok(all)
    }
}
