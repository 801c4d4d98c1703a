//! A throw-away primary with replicas, watched by three Sentinels.

use anyhow::Context as _;

use crate::redis::{Programs, persistence};
use crate::{Purpose, Server, random_password, temporary_folder};

/// Two of them decide.
const SENTINELS: usize = 3;

/// The name under which the Sentinels watch the primary.
const NAME: &str = "main";

/// A primary and its replicas, which Sentinels fail over.
#[derive(Debug)]
pub struct RedisSentinel {
    /// The first is the primary until the first fail-over.
    pub servers: Vec<Server>,
    sentinels: Vec<Server>,
    url: String,
}

impl RedisSentinel {
    /// Starts a primary, `replicas` replicas and three Sentinels, which fail over within some two seconds.
    ///
    /// # Errors
    /// The programs are not installed, or one of them does not start.
    pub async fn fresh(replicas: usize, purpose: Purpose) -> anyhow::Result<Self> {
        let programs = Programs::find().context("redis-server is not installed")?;
        let password = random_password()?;
        programs.start_sentinel(replicas, &password, purpose, 1000).await
    }

    /// All of them as one, which speaks in the name of the primary.
    pub(crate) fn joined(mut self) -> Server {
        let primary = self.servers.remove(0);
        self.servers.append(&mut self.sentinels);
        primary.with(self.servers, "Redis with Sentinels".to_owned(), self.url)
    }

    /// The URL of the Sentinels and their primary.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Programs {
    /// As [`RedisSentinel::fresh`]. A server that has not answered for `down_after_millis` is taken for dead.
    pub(crate) async fn start_sentinel(
        &self,
        replicas: usize,
        password: &str,
        purpose: Purpose,
        down_after_millis: u32,
    ) -> anyhow::Result<RedisSentinel> {
        let settings = format!(
            "requirepass {password}\nmasterauth {password}\nrepl-diskless-sync-delay 0\n{}",
            persistence(purpose)
        );
        let start = async |settings: &str, words| {
            let started = self.start_with(temporary_folder()?, password, settings, words);
            Box::pin(started).await
        };
        let mut servers = vec![start(&settings, &[]).await?];
        let primary = servers[0].address().replace(':', " ");
        for _ in 0..replicas {
            let settings = format!("{settings}replicaof {primary}\n");
            servers.push(start(&settings, &[]).await?);
        }
        // A Sentinel learns of the replicas when it first asks the primary.
        let replicas = format!("connected_slaves:{replicas}");
        let all = ["INFO", "replication"];
        self.until(password, &servers[0].address(), &all, &replicas)
            .await?;
        let watch = format!(
            "requirepass {password}\nsentinel monitor {NAME} {primary} 2\nsentinel auth-pass {NAME} {password}\n\
             sentinel down-after-milliseconds {NAME} {down_after_millis}\nsentinel failover-timeout {NAME} 3000\n"
        );
        let mut sentinels = Vec::new();
        for _ in 0..SENTINELS {
            sentinels.push(start(&watch, &["--sentinel"]).await?);
        }
        for sentinel in &sentinels {
            let asked = ["SENTINEL", "CKQUORUM", NAME];
            let address = sentinel.address();
            self.until(password, &address, &asked, "OK 3 usable").await?;
        }
        let addresses: Vec<_> = sentinels.iter().map(Server::address).collect();
        let url = format!(
            "redis+sentinel://:{password}@{}/{NAME}?sentinel_password={password}",
            addresses.join(",")
        );
        Ok(RedisSentinel {
            servers,
            sentinels,
            url,
        })
    }
}
