//! The primary goes away, and its Sentinels choose another one.

use std::time::Duration;

use anyhow::Context as _;
use dblock_servers::Server;
use redis::{Client, RedisResult, Value};
use tokio::time::{Instant, sleep, timeout};

use super::Injector;

/// How long a server may take to tell its role. A stopped one does not answer.
const TIMEOUT: Duration = Duration::from_millis(300);

/// How long a former primary may take to become a replica. Sentinels wait for 10 seconds and more.
const DEMOTED: Duration = Duration::from_secs(40);

impl Injector<'_> {
    /// Returns when the former primary is a replica: until then it may take writes that are lost later.
    pub(super) async fn fail_over(&self, stop: bool, length: Duration) -> anyhow::Result<bool> {
        let sentinel = self.target.sentinel.as_ref().context("there are Sentinels")?;
        // One at a time.
        let Ok(mut servers) = sentinel.try_lock() else {
            return Ok(false);
        };
        let Some(former) = primary(&servers.servers).await else {
            return Ok(false);
        };
        if stop {
            servers.servers[former].pause()?;
            sleep(length).await;
            servers.servers[former].wake()?;
        } else {
            servers.servers[former].kill();
            sleep(length).await;
            servers.servers[former].restart().await?;
        }
        let since = Instant::now();
        while since.elapsed() < DEMOTED {
            if role(&servers.servers[former]).await.as_deref() == Some("slave") {
                return Ok(true);
            }
            sleep(Duration::from_millis(100)).await;
        }
        // A primary that was away for too short a time is still the primary.
        Ok(role(&servers.servers[former]).await.as_deref() == Some("master"))
    }
}

/// The first server that calls itself the primary.
async fn primary(servers: &[Server]) -> Option<usize> {
    for (index, server) in servers.iter().enumerate() {
        if role(server).await.as_deref() == Some("master") {
            return Some(index);
        }
    }
    None
}

async fn role(server: &Server) -> Option<String> {
    let asked = async {
        let client = Client::open(server.url())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let answer: RedisResult<Vec<Value>> = redis::cmd("ROLE").query_async(&mut connection).await;
        answer
    };
    match timeout(TIMEOUT, asked).await.ok()?.ok()?.first()? {
        Value::BulkString(name) => String::from_utf8(name.clone()).ok(),
        _ => None,
    }
}
