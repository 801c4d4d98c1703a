//! How the keys of a Redis Cluster are divided: into a fixed number of shards, each with a tag of its own, so
//! that one script can carry out the requests of a shard.

use std::sync::atomic::{AtomicBool, Ordering};

use dblock_core::store::{StoreError, StoreErrorKind};

use crate::cluster::Cluster;
use crate::slots::crc16;

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
        let name = format!("{}:shards", tag(prefix, 0));
        let mut write = redis::cmd("SET");
        write.arg(&name).arg(self.number).arg("NX");
        cluster.ask::<redis::Value>(&name, &write).await?;
        let mut read = redis::cmd("GET");
        let found: Option<String> = cluster.ask(&name, read.arg(&name)).await?;
        if found.as_deref() != Some(&self.number.to_string()) {
            return refuse(format!(
                "the locks below {name:?} are divided into {} shards, and this program says {}: give the same `?shards=` \
                 in the URL of each",
                found.as_deref().unwrap_or("?"),
                self.number
            ));
        }
        self.agreed.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// The text between the braces decides about the slot.
pub(crate) fn tag(prefix: &str, shard: u16) -> String {
    format!("{{{prefix}:{shard}}}")
}
