//! Databases to test on, and a way to one that can be cut.

use std::io::Write as _;
use std::net::SocketAddr;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A database of its own on a server, or a file.
pub(crate) enum Place {
    Sqlite(TempDir),
    Postgres { server: String, name: String },
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    /// `None` when no server is given.
    pub(crate) async fn postgres() -> Option<Self> {
        let Ok(server) = std::env::var("DBLOCK_TEST_POSTGRES_URL") else {
            assert!(
                std::env::var("DBLOCK_TEST_REQUIRE_SERVERS").as_deref() != Ok("1"),
                "DBLOCK_TEST_REQUIRE_SERVERS=1, but DBLOCK_TEST_POSTGRES_URL is not set"
            );
            // Not `eprintln!`, which the test runner keeps to itself.
            let _ = writeln!(
                std::io::stderr(),
                "LEFT OUT: the web example on PostgreSQL, because DBLOCK_TEST_POSTGRES_URL is not set"
            );
            return None;
        };
        let name = format!("web_{}", uuid::Uuid::now_v7().simple());
        run(&server, format!("CREATE DATABASE {name}")).await;
        Some(Self::Postgres { server, name })
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sqlite(folder) => format!("sqlite://{}", folder.path().join("web.db").display()),
            Self::Postgres { server, name } => {
                let (base, _) = server.rsplit_once('/').unwrap();
                format!("{base}/{name}")
            }
        }
    }

    pub(crate) async fn remove(self) {
        if let Self::Postgres { server, name } = self {
            run(&server, format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }
}

async fn run(server: &str, sql: String) {
    let mut connection = PgConnection::connect(server).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut connection)
        .await
        .unwrap();
}

/// A way to a database server that can be closed.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn open(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            // Dropped with the task: then the connections break and nobody listens.
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let mut server = TcpStream::connect(&target).await.unwrap();
                connections.spawn(async move { copy_bidirectional(&mut client, &mut server).await });
            }
        });
        Self { address, task }
    }

    pub(crate) async fn close(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
