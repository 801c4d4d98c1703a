//! How the keys of a Redis Cluster are divided: into a fixed number of shards, each with a tag of its own, so
//! that one script can carry out the requests of a shard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::slots::crc16;

/// In how many places the number of shards is written down. More than half of them must say the same, so a server that
/// hangs keeps nobody from starting.
const RECORDS: u16 = 3;

/// How long the other records are waited for.
const MOMENT: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Shards {
    number: u16,
    agreed: AtomicBool,
}

impl Shards {
    pub(crate) fn new(number: u16) -> Self {
        Self {
            number,
            agreed: AtomicBool::new(false),
        }
    }

    pub(crate) fn again(&self) -> Self {
        Self::new(self.number)
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    /// The shard of a key.
    pub(crate) fn of(&self, key: &str) -> u16 {
        crc16(key.as_bytes()) % self.number
    }

    /// Makes sure that all who share locks have the same number of shards: with another one a key would have
    /// another row. The first program writes the number down.
    pub(crate) async fn agree(&self, cluster: &Cluster, prefix: &str) -> Result<(), StoreError> {
        if self.agreed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let refuse = |message| Err(StoreError::new(StoreErrorKind::Unsupported, message));
        if prefix.contains(['{', '}']) {
            return refuse(format!(
                "the prefix {prefix:?} cannot be part of a cluster's tag: choose one without braces"
            ));
        }
        let names = (0..RECORDS).map(|at| format!("{}:shards", tag(prefix, at)));
        let mut asked: FuturesUnordered<_> = names.map(|name| self.record(cluster, name)).collect();
        let own = self.number.to_string();
        let (mut same, mut others) = (0, Vec::new());
        let mut failed: Option<StoreError> = None;
        while let Some(found) = asked.next().await {
            match found {
                Ok(number) if number == own => same += 1,
                Ok(number) => others.push(number),
                // Of several errors, one that does not pass by itself says more.
                Err(error) => failed = Some(failed.filter(|before| !before.is_retryable()).unwrap_or(error)),
            }
            if same > RECORDS / 2 {
                self.agreed.store(true, Ordering::Relaxed);
                // The others shall have the number, too, in case that one of these forgets.
                let _ = timeout(MOMENT, asked.count()).await;
                return Ok(());
            }
            if others.len() > usize::from(RECORDS / 2) {
                break;
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        refuse(format!(
            "the locks with the prefix {prefix:?} are divided into {} shards, and this program says {own}: give the same \
             `?shards=` in the URL of each",
            others.first().map_or("?", String::as_str),
        ))
    }

    /// What is written down under this name, or is now.
    async fn record(&self, cluster: &Cluster, name: String) -> Result<String, StoreError> {
        let mut write = redis::cmd("SET");
        write.arg(&name).arg(self.number).arg("NX");
        cluster.ask::<redis::Value>(&name, &write).await?;
        let mut read = redis::cmd("GET");
        let found: Option<String> = cluster.ask(&name, read.arg(&name)).await?;
        Ok(found.unwrap_or_else(|| "?".to_owned()))
    }
}

/// The text between the braces decides about the slot.
pub(crate) fn tag(prefix: &str, shard: u16) -> String {
    format!("{{{prefix}:{shard}}}")
}
