//! Which servers can keep locks.

use std::collections::HashMap;

use dblock_core::store::{StoreError, StoreErrorKind};

/// The oldest version that has `SET … PXAT`.
const OLDEST: (u32, u32) = (6, 2);

/// The server's description of itself.
pub(crate) struct Info<'a>(HashMap<&'a str, &'a str>);

impl<'a> Info<'a> {
    /// Reads the answer to `INFO`.
    pub(crate) fn read(text: &'a str) -> Self {
        Self(
            text.lines()
                .filter_map(|line| line.trim_end().split_once(':'))
                .collect(),
        )
    }

    /// A field; empty when the server does not give it.
    pub(crate) fn get(&self, name: &str) -> &'a str {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// The version of Redis, or the one that Valkey is compatible with.
    pub(crate) fn version(&self) -> (u32, u32) {
        let mut numbers = self
            .get("redis_version")
            .split('.')
            .map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

/// Refuses a server that would lose locks, or that cannot keep them. `in_cluster`: it must be one of a
/// cluster.
pub(crate) fn check(info: &Info<'_>, in_cluster: bool) -> Result<(), StoreError> {
    let unsupported = |message: String| Err(StoreError::new(StoreErrorKind::Unsupported, message));
    let refused = match (info.get("redis_mode"), in_cluster) {
        ("cluster", false) => Some(
            "the server is one of a Redis Cluster: give the cluster's URL, as redis+cluster://…, so that the keys get the \
             tag that they need there",
        ),
        ("cluster", true) => None,
        ("sentinel", _) => Some(
            "the server is a Sentinel: give the URL of Sentinels and of the primary's name, as \
             redis+sentinel://sentinel:26379/NAME",
        ),
        (_, true) => Some("the server is not one of a Redis Cluster: give its URL as redis://…"),
        _ => None,
    };
    if let Some(message) = refused {
        return unsupported(message.to_owned());
    }
    let version = info.version();
    if version < OLDEST {
        let found = info.get("redis_version");
        return unsupported(format!(
            "the server is Redis {found:?}; Redis {}.{} or later, or Valkey, is needed",
            OLDEST.0, OLDEST.1
        ));
    }
    // The rows have numbers of 8 bytes, which the scripts of the others cannot read.
    if info.get("arch_bits") == "32" {
        return unsupported("the server is a program of 32 bits: one of 64 bits is needed".to_owned());
    }
    let policy = info.get("maxmemory_policy");
    if policy != "noeviction" {
        return unsupported(format!(
            "the server may throw locks away when its memory is full: its `maxmemory-policy` is {policy:?}; set it to \
             noeviction, or give the locks a server of their own"
        ));
    }
    // After a fail-over the next connection may find the primary.
    if info.get("role") != "master" {
        return Err(StoreError::new(
            StoreErrorKind::Unreachable,
            "the server is a replica: point dblock at the primary",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\narch_bits:64\r\n# Memory\r\n\
                        maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\n";

    #[test]
    fn a_server_that_would_lose_locks_is_refused() {
        assert!(check(&Info::read(GOOD), false).is_ok());
        let refused = [
            ("redis_version:7.0.15", "redis_version:6.0.16", "6.2 or later"),
            ("standalone", "cluster", "redis+cluster://"),
            ("arch_bits:64", "arch_bits:32", "64 bits"),
            ("standalone", "sentinel", "redis+sentinel://"),
            ("noeviction", "allkeys-lru", "noeviction"),
            ("maxmemory_policy:noeviction", "x:y", "noeviction"),
            ("role:master", "role:slave", "primary"),
        ];
        for (good, bad, says) in refused {
            let info = GOOD.replace(good, bad);
            let error = check(&Info::read(&info), false).unwrap_err();
            assert!(error.to_string().contains(says), "{bad}: {error}");
        }
        let error = check(&Info::read(GOOD), true).unwrap_err();
        assert!(
            error.to_string().contains("not one of a Redis Cluster"),
            "{error}"
        );
        assert!(check(&Info::read(&GOOD.replace("standalone", "cluster")), true).is_ok());
    }
}
