//! How the keys of a Redis Cluster are divided: into a fixed number of shards, each with a tag of its own, so
//! that one script can carry out the requests of a shard.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use futures_util::StreamExt as _;
use futures_util::stream::{self, FuturesUnordered};
use tokio::time::timeout;

use crate::cluster::Cluster;
use crate::slots::{self, crc16};

/// In how many places the number of shards is written down. More than half of them must say the same, so a server that
/// hangs keeps nobody from starting. Older programs have written record 0 only, so it may not say another number.
const RECORDS: u16 = 3;

/// How long record 0 is waited for before the others are written, and the last one when the others say the same.
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
        let own = self.number.to_string();
        let differs = |at, number| {
            refuse(format!(
                "the locks with the prefix {prefix:?} are divided into {number} shards, as the key {} says, and this program \
                 says {own}: give the same `?shards=` in the URL of each, or delete the key if no program uses {number} shards",
                record(prefix, at),
            ))
        };
        let ask = |at: u16| async move { (at, self.ask(cluster, &record(prefix, at)).await) };
        let mut asked: FuturesUnordered<_> = std::iter::once(ask(0)).collect();
        let first = timeout(MOMENT, asked.next()).await.ok().flatten();
        // The others are written after this answer was looked at: with another number they would keep away those who
        // have written record 0.
        asked.extend((1..RECORDS).map(ask));
        let mut answers = stream::iter(first).chain(asked);
        let (mut same, mut others) = (0, 0);
        let mut failed: Option<StoreError> = None;
        while let Some((at, found)) = answers.next().await {
            match found {
                Ok(number) if number == own => same += 1,
                Ok(number) if at == 0 || others == RECORDS / 2 => return differs(at, number),
                Ok(_) => others += 1,
                // Of several errors, one that does not pass by itself says more.
                Err(error) => failed = Some(failed.filter(|before| !before.is_retryable()).unwrap_or(error)),
            }
            if same > RECORDS / 2 {
                // The last one shall have the number, too, in case that one of these forgets.
                if let Ok(Some((0, Ok(number)))) = timeout(MOMENT, answers.next()).await
                    && number != own
                {
                    return differs(0, number);
                }
                self.agreed.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
        Err(failed.expect("without a failure more than half say the same, or another number"))
    }

    /// What is written down under this name, or is now.
    async fn ask(&self, cluster: &Cluster, name: &str) -> Result<String, StoreError> {
        let mut write = redis::cmd("SET");
        write.arg(name).arg(self.number).arg("NX");
        cluster.ask::<redis::Value>(name, &write).await?;
        let mut read = redis::cmd("GET");
        let found: Option<String> = cluster.ask(name, read.arg(name)).await?;
        Ok(found.unwrap_or_else(|| "?".to_owned()))
    }
}

/// The name of a record. They are a third of the slots away from each other, and so on three servers if there are as many.
fn record(prefix: &str, at: u16) -> String {
    let name = |number| format!("{}:shards", tag(prefix, number));
    let slot = |number| slots::slot(name(number).as_bytes());
    let mut numbers = 0..u16::MAX;
    let number = numbers.find(|number| {
        let distance = slot(*number).wrapping_sub(slot(0)) % slots::SLOTS;
        distance.wrapping_sub(at * (slots::SLOTS / RECORDS)) < slots::SLOTS / 128
    });
    name(number.expect("the slots are spread"))
}

/// The text between the braces decides about the slot.
pub(crate) fn tag(prefix: &str, shard: u16) -> String {
    format!("{{{prefix}:{shard}}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_are_spread_over_the_slots() {
        for prefix in ["dblock", "app", "", "another", "x:1"] {
            assert_eq!(record(prefix, 0), format!("{{{prefix}:0}}:shards"));
            let slots = [0, 1, 2].map(|at| slots::slot(record(prefix, at).as_bytes()));
            for (one, next) in [(0, 1), (1, 2), (2, 0)] {
                let distance = slots[next].wrapping_sub(slots[one]) % slots::SLOTS;
                assert!(distance.abs_diff(slots::SLOTS / 3) < 200, "{prefix:?}: {slots:?}");
            }
        }
    }
}
