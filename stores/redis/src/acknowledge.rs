//! Waiting for replicas, or for disks, before an answer counts.

use std::time::Duration;

use dblock_core::store::{StoreError, StoreErrorKind};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue as _, RedisError, Value};

use crate::server::Info;

/// The longest wait. Meanwhile the connection carries nothing else, not even renewals.
const LONGEST: Duration = Duration::from_secs(1);

/// The oldest version that has `WAITAOF`.
const OLDEST: (u32, u32) = (7, 2);

/// The servers that must have a write before its answer counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Acknowledgement {
    replicas: u32,
    within: Duration,
    /// On the disks of the replicas and of the primary, rather than in the replicas' memory.
    on_disk: bool,
}

impl Acknowledgement {
    pub(crate) fn new(replicas: u32, within: Duration, on_disk: bool) -> Result<Self, StoreError> {
        // The server takes 0 for no limit at all.
        if within < Duration::from_millis(1) || within > LONGEST {
            return Err(refuse(format!(
                "a wait of {within:?} for replicas is refused: give it from 1 ms to {LONGEST:?}"
            )));
        }
        if replicas == 0 && !on_disk {
            return Err(refuse(
                "to wait for 0 replicas would mean nothing: give at least 1".to_owned(),
            ));
        }
        Ok(Self {
            replicas,
            within,
            on_disk,
        })
    }

    /// Refuses a server that could never give the answer.
    pub(crate) fn check(&self, info: &Info<'_>) -> Result<(), StoreError> {
        if self.on_disk && info.version() < OLDEST {
            return Err(refuse(format!(
                "`synced_by` needs Redis {}.{} or later, or Valkey; the server is {}",
                OLDEST.0,
                OLDEST.1,
                info.get("redis_version")
            )));
        }
        if self.on_disk && info.get("aof_enabled") != "1" {
            return Err(refuse(
                "`synced_by` needs `appendonly yes`, which the server has not".to_owned(),
            ));
        }
        let found = info.get("connected_slaves").parse().unwrap_or(0);
        if self.replicas > found {
            return Err(StoreError::new(
                StoreErrorKind::Unreachable,
                format!(
                    "the primary has {found} replicas at present, and {} must have each write: see why the others are not \
                     connected",
                    self.replicas
                ),
            ));
        }
        Ok(())
    }

    /// Waits for all that this connection has written. A missing answer leaves the outcome open: the server
    /// keeps the write, and a fail-over may lose it.
    pub(crate) async fn wait(&self, connection: &mut MultiplexedConnection) -> Result<(), StoreError> {
        let mut wait = redis::cmd(if self.on_disk { "WAITAOF" } else { "WAIT" });
        if self.on_disk {
            wait.arg(1);
        }
        wait.arg(self.replicas).arg(self.within.as_millis().to_string());
        let answer: Result<Value, RedisError> = wait.query_async(connection).await;
        let (disks, replicas) = answer.and_then(|found| self.read(found)).map_err(|error| {
            let message = format!("the server did not say whether its replicas have the write: {error}");
            StoreError::new(StoreErrorKind::Interrupted, message).with_source(error)
        })?;
        if replicas >= self.replicas && (disks > 0 || !self.on_disk) {
            return Ok(());
        }
        let place = if self.on_disk {
            "on their disks"
        } else {
            "in their memory"
        };
        Err(StoreError::new(
            StoreErrorKind::Interrupted,
            format!(
                "{replicas} of {} replicas had the write {place} within {:?}, so a fail-over may lose it: see why the \
                 replicas are behind",
                self.replicas, self.within
            ),
        ))
    }

    /// The number of the primary's disks, and the number of replicas, that have the write.
    fn read(&self, found: Value) -> Result<(u32, u32), RedisError> {
        if self.on_disk {
            return Ok(<(u32, u32)>::from_redis_value(found)?);
        }
        Ok((0, u32::from_redis_value(found)?))
    }
}

fn refuse(message: String) -> StoreError {
    StoreError::new(StoreErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_an_end_or_a_meaning_is_refused() {
        for (replicas, ms, on_disk) in [(1, 0, false), (1, 1_001, true), (0, 100, false)] {
            let within = Duration::from_millis(ms);
            let error = Acknowledgement::new(replicas, within, on_disk).unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
        }
        assert!(Acknowledgement::new(0, LONGEST, true).is_ok());
    }

    #[test]
    fn a_server_that_cannot_answer_is_refused() {
        let disks = Acknowledgement::new(0, LONGEST, true).unwrap();
        let replicas = Acknowledgement::new(2, LONGEST, false).unwrap();
        for (who, info, says) in [
            (disks, "redis_version:7.0.15\naof_enabled:1", "7.2 or later"),
            (disks, "redis_version:7.2.4\naof_enabled:0", "appendonly yes"),
            (replicas, "redis_version:7.0.15\nconnected_slaves:1", "1 replicas"),
        ] {
            let error = who.check(&Info::read(info)).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        let good = Info::read("redis_version:7.2.4\naof_enabled:1\nconnected_slaves:2");
        assert!(disks.check(&good).is_ok() && replicas.check(&good).is_ok());
    }
}
