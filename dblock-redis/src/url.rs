//! Reads a URL. No message repeats it, because it may contain a password.

use dblock::store::{StoreError, StoreErrorKind};
use redis::Client;

pub(crate) fn client(url: &str) -> Result<Client, StoreError> {
    let refuse = |message: &str| Err(StoreError::new(StoreErrorKind::Unsupported, message));
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "redis" | "valkey" | "redis+unix" | "valkey+unix" => {}
        "rediss" | "valkeys" => secure()?,
        "" => return refuse("the URL has no scheme; write redis://…, rediss://… or valkey://…"),
        other if other.contains("cluster") => {
            return refuse(
                "a Redis Cluster is not supported: give the URL of one server that is not in a cluster, as redis://…",
            );
        }
        other if other.contains("sentinel") => {
            return refuse(
                "Sentinel is not supported: give the URL of the primary, or of a name that follows it, as redis://…",
            );
        }
        // The text before the first colon may be a password where somebody has forgotten the scheme.
        _ => return refuse("the URL's scheme is none of redis, rediss, valkey, redis+unix"),
    }
    let address = rest.rsplit_once('@').map_or(rest, |(_, address)| address);
    if address
        .split(['/', '?'])
        .next()
        .is_some_and(|hosts| hosts.contains(','))
    {
        return refuse("the URL names several servers, as of a cluster; one is supported");
    }
    // The error says what is wrong, and has nothing of the URL.
    Client::open(url).map_err(|error| {
        let message = format!("the Redis URL cannot be read: {}", error.category());
        StoreError::new(StoreErrorKind::Unsupported, message)
    })
}

/// rustls needs somebody to choose who encrypts: the program, or else we.
#[cfg(feature = "tls-rustls")]
#[allow(clippy::unnecessary_wraps, reason = "without the feature it fails")]
fn secure() -> Result<(), StoreError> {
    // Fails when there is a choice already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Ok(())
}

#[cfg(not(feature = "tls-rustls"))]
fn secure() -> Result<(), StoreError> {
    Err(StoreError::new(
        StoreErrorKind::Unsupported,
        "TLS is not compiled in; write `dblock-redis = { version = \"…\", features = [\"tls-rustls\"] }` in Cargo.toml",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_and_valkey_are_read() {
        for url in [
            "redis://localhost",
            "valkey://user:word@localhost:6380/3",
            "REDIS://[::1]:6379",
            "redis+unix:///run/redis.sock?db=2",
        ] {
            assert!(client(url).is_ok(), "{url}");
        }
        assert_eq!(client("rediss://localhost").is_ok(), cfg!(feature = "tls-rustls"));
    }

    #[test]
    fn what_is_refused_says_why_and_repeats_no_password() {
        let refused = [
            ("user:hush@localhost", "no scheme"),
            ("hush", "no scheme"),
            ("hush://localhost", "scheme"),
            ("redis+cluster://:hush@a:1", "Cluster is not supported"),
            ("redis-sentinel://:hush@a:1/0", "Sentinel is not supported"),
            ("redis://:hush@a:1,b:2", "several servers"),
            ("redis://:hush@localhost:hush", "cannot be read"),
            ("redis://:hush@localhost/hush", "cannot be read"),
            ("redis://:hush@/0", "cannot be read"),
        ];
        for (url, says) in refused {
            let error = client(url).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(says), "{url}: {shown}");
            assert!(!shown.contains("hush"), "{url}: {shown}");
        }
    }
}
