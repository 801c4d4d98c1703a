//! A table of its own on the test server.

use std::net::{SocketAddr, ToSocketAddrs};

use dblock::store::{MySqlStore, Store};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions};
use uuid::Uuid;

use crate::run;

const DATABASE: &str = "dblock_test";

/// A table of its own on the test server.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) table: String,
}

impl Place {
    /// `None` when no server is given. The table is not created yet.
    pub(crate) async fn bare() -> Option<Self> {
        let url = dblock_tests::mysql_url()?;
        let place = Self {
            url,
            table: format!("{DATABASE}.t{}", Uuid::now_v7().simple()),
        };
        place
            .run(&format!("CREATE DATABASE IF NOT EXISTS {DATABASE}"))
            .await;
        Some(place)
    }

    /// With the tables in it.
    pub(crate) async fn migrated() -> Option<Self> {
        let place = Self::bare().await?;
        place.store().migrate().await.unwrap();
        Some(place)
    }

    pub(crate) fn store(&self) -> MySqlStore {
        MySqlStore::open(&self.url, &self.table).unwrap()
    }

    /// A store that reaches the server at another address.
    pub(crate) fn store_at(&self, address: &str) -> MySqlStore {
        let (start, rest) = self.url.split_once('@').unwrap();
        let path = rest.find('/').map_or("", |slash| &rest[slash..]);
        MySqlStore::open(&format!("{start}@{address}{path}"), &self.table).unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        let options = self.options();
        let mut addresses = (options.get_host(), options.get_port())
            .to_socket_addrs()
            .unwrap();
        addresses.next().unwrap()
    }

    pub(crate) fn store_as(&self, user: &str, password: &str) -> MySqlStore {
        let options = self.options();
        let url = format!(
            "mysql://{user}:{password}@{}:{}",
            options.get_host(),
            options.get_port()
        );
        MySqlStore::open(&url, &self.table).unwrap()
    }

    pub(crate) fn options(&self) -> MySqlConnectOptions {
        self.url.parse().unwrap()
    }

    /// A connection of the user's, with the server's own settings.
    pub(crate) async fn connection(&self) -> MySqlConnection {
        self.options()
            .disable_statement_logging()
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn kill_connections_of(&self, user: &str) {
        let mut admin = self.connection().await;
        let find =
            format!("SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = '{user}'");
        let ids: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(find))
            .fetch_all(&mut admin)
            .await
            .unwrap();
        assert!(!ids.is_empty());
        for id in ids {
            run(&mut admin, &format!("KILL {id}")).await;
        }
    }

    pub(crate) async fn is_mariadb(&self) -> bool {
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&mut self.connection().await)
            .await
            .unwrap();
        version.contains("MariaDB")
    }

    pub(crate) async fn run(&self, sql: &str) {
        run(&mut self.connection().await, sql).await;
    }

    /// A user who has just the given rights on the lock table and its version table.
    pub(crate) async fn user(&self, name: &str, rights: &str) {
        for host in ["localhost", "%"] {
            self.run(&format!(
                "CREATE USER IF NOT EXISTS '{name}'@'{host}' IDENTIFIED BY 'pw'"
            ))
            .await;
            for suffix in ["", "_version"] {
                if !rights.is_empty() {
                    self.run(&format!(
                        "GRANT {rights} ON {}{suffix} TO '{name}'@'{host}'",
                        self.table
                    ))
                    .await;
                }
            }
        }
    }
}
