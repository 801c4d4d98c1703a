//! Faults of a Redis server.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, RedisResult};
use tokio::time::sleep;

async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    Client::open(url)?.get_multiplexed_async_connection().await
}

/// Holds back all writes for so long. Returns at once.
pub(super) async fn hold_writes(url: &str, length: Duration) -> RedisResult<()> {
    let mut admin = connect(url).await?;
    let mut pause = redis::cmd("CLIENT");
    pause
        .arg("PAUSE")
        .arg(u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
    pause.arg("WRITE").exec_async(&mut admin).await
}

/// Ends at most so many connections, and returns how many.
pub(super) async fn terminate(url: &str, limit: usize) -> anyhow::Result<usize> {
    let mut admin = connect(url).await?;
    let mut list = redis::cmd("CLIENT");
    let clients: String = list.arg("LIST").query_async(&mut admin).await?;
    let number = |client: &str| client.strip_prefix("id=")?.split(' ').next()?.parse::<u64>().ok();
    let mut clients: Vec<u64> = clients.lines().filter_map(number).collect();
    fastrand::shuffle(&mut clients);
    clients.truncate(limit);
    let mut ended = 0;
    for client in clients {
        let mut kill = redis::cmd("CLIENT");
        kill.arg("KILL").arg("ID").arg(client).arg("SKIPME").arg("yes");
        ended += kill.query_async::<usize>(&mut admin).await?;
    }
    Ok(ended)
}

/// Opens connections until the server refuses more, and keeps them for so long. Returns whether it refused.
pub(super) async fn exhaust(url: &str, too_many: usize, length: Duration) -> bool {
    let mut taken = Vec::new();
    while taken.len() < too_many {
        let Ok(connection) = connect(url).await else { break };
        taken.push(connection);
    }
    sleep(length).await;
    taken.len() < too_many
}
