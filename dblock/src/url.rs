//! Which store a URL leads to.

use crate::LockError;
use crate::store::memory::MemoryStore;
use crate::store::schemes;
use crate::store::source::{Source as _, StoreSource};

/// What a store's `from_url` makes of the URL, if the store is compiled in.
macro_rules! in_store {
    ($feature:literal, $store:ident, $url:expr) => {{
        #[cfg(feature = $feature)]
        let source = crate::store::$store::from_url($url);
        #[cfg(not(feature = $feature))]
        let source = Err(LockError::invalid(concat!(
            "the ",
            $feature,
            " store is not compiled in; write `dblock = { version = \"…\", features = [\"",
            $feature,
            "\"] }` in Cargo.toml"
        )));
        source
    }};
}

/// Reads a URL. Its scheme selects the store. No message repeats the URL, because it may contain a password.
pub(crate) fn source(url: &str) -> Result<StoreSource, LockError> {
    let scheme = url
        .split_once(':')
        .map_or("", |(scheme, _)| scheme)
        .to_ascii_lowercase();
    match scheme.as_str() {
        "postgres" | "postgresql" => in_store!("postgres", postgres, url),
        "mysql" | "mariadb" => in_store!("mysql", mysql, url),
        "sqlite" => in_store!("sqlite", sqlite, url),
        "memory" => memory(url),
        // Without a scheme, the text before the first colon may be a password.
        scheme if !is_scheme(scheme) => Err(LockError::invalid(
            "the database URL has no scheme; write postgres://…, mysql://…, mariadb://…, sqlite://… or memory:",
        )),
        other => match schemes::opener(other) {
            Some(open) => Ok(open(url)?.into_source()),
            None => Err(unknown(other)),
        },
    }
}

fn unknown(scheme: &str) -> LockError {
    let (store, register) = match &*schemes::protocol(scheme) {
        "redis" | "rediss" | "valkey" | "valkeys" => ("Redis or Valkey", "dblock_redis::register()"),
        "zookeeper" => ("ZooKeeper", "dblock_zookeeper::register()"),
        "etcd" | "etcds" => ("etcd", "dblock_etcd::register()"),
        _ => {
            return LockError::invalid(format!(
                "no lock store for the URL scheme {scheme:?}; use postgres, mysql, mariadb, sqlite or memory"
            ));
        }
    };
    LockError::invalid(format!(
        "locks in {store} are a crate of their own: call `{register}` at the start of the program"
    ))
}

fn memory(url: &str) -> Result<StoreSource, LockError> {
    if matches!(url.split_once(':'), Some((_, "" | "//"))) {
        return Ok(MemoryStore::new().into_source());
    }
    Err(LockError::invalid(
        "the URL memory: takes no name, because each manager that is built from it has rows of its own; for two \
         managers over the same rows, give a clone of one `dblock::store::MemoryStore` to each \
         `LockManager::builder`",
    ))
}

/// Whether the text is a word such as `redis` or `http+unix`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(feature = "postgres", feature = "mysql"))]
    #[test]
    fn no_demand_for_tls_is_ignored() {
        let said = |url: &str| source(url).map_or_else(|error| error.to_string(), |_| String::new());
        for url in [
            "postgres://u:secret@h/d?sslmod=require",
            "postgres://h/d?application_name=a&SSLMODE=require",
            "postgres://h,i/d?sslcrl=x",
            "mysql://u:secret@h/d?sslrootcert=x",
            "mariadb://h/d?useTLS=true#x",
        ] {
            let said = said(url);
            assert!(
                said.contains("is not known") && !said.contains("secret"),
                "{url}: {said}"
            );
        }
        let has_tls = cfg!(any(feature = "tls-rustls", feature = "tls-native-tls"));
        for url in [
            "postgres://h/d?sslmode=require",
            "postgres://h/d?ssl-mode=verify-full",
            "mysql://h/d?ssl-mode=REQUIRED",
        ] {
            assert_eq!(said(url).contains("`tls-rustls`"), !has_tls, "{url}");
        }
        for url in [
            "postgres://u:ssl@h/d?sslmode=prefer&connect_timeout=5",
            "postgres://h/ssl",
            "mysql://h/d?ssl-mode=PREFERRED",
        ] {
            assert_eq!(said(url), "", "{url}");
        }
    }

    #[test]
    fn a_memory_url_has_no_name() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        for url in ["memory:", "memory://", "MEMORY:"] {
            assert!(source(url).is_ok(), "{url}");
        }
        for url in ["memory:foo", "memory://foo", "memory:/", "memory: "] {
            let error = source(url).unwrap_err().to_string();
            assert!(error.contains("takes no name"), "{url}: {error}");
        }
    }
}
