//! Servers that refuse, restart, forget, or are not what they should be.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod clients;
mod durable;
mod failing;
mod neighbours;
mod refused;
mod scripts;

use std::time::Duration;

use dblock::store::{Acquire, Action, Outcome, Request, Store as _, StoreError};
use dblock::{Key, LockOptions};
use dblock_redis::RedisStore;
use dblock_servers::{Kind, Purpose, Server, is_installed};
use redis::aio::MultiplexedConnection;
use uuid::Uuid;

/// A server that the test may break.
async fn fresh(purpose: Purpose) -> Option<Server> {
    if !is_installed(Kind::Redis) {
        dblock_tests::left_out("a Redis server of its own", "install redis-server");
        return None;
    }
    Some(Server::fresh(Kind::Redis, purpose).await.unwrap())
}

async fn connect(server: &Server) -> MultiplexedConnection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn command(server: &Server, words: &[&str]) {
    let mut connection = connect(server).await;
    let (name, arguments) = words.split_first().unwrap();
    redis::cmd(name)
        .arg(arguments)
        .exec_async(&mut connection)
        .await
        .unwrap();
}

fn store(server: &Server) -> RedisStore {
    RedisStore::new(server.url()).unwrap()
}

fn acquire(key: &str) -> Request {
    let ask = Acquire::new(Uuid::now_v7(), Duration::from_secs(30), "test");
    Request::new(Key::new(None, key).unwrap(), Uuid::now_v7(), Action::Acquire(ask))
}

async fn one(store: &RedisStore, request: Request) -> Result<Outcome, StoreError> {
    store.apply(&[request]).await.remove(0)
}

fn options() -> LockOptions {
    LockOptions::new().wait(Duration::from_secs(20))
}
