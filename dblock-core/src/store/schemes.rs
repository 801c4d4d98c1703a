//! Stores of other crates, by the schemes of their URLs.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::Store;
use crate::LockError;

/// Makes a store of a URL.
type Open = Arc<dyn Fn(&str) -> Result<Arc<dyn Store>, LockError> + Send + Sync>;

static OPENERS: RwLock<BTreeMap<String, Open>> = RwLock::new(BTreeMap::new());

/// From now on URLs with these schemes are opened by `open`, wherever this process reads the URL of a store, such as in
/// `LockManager::connect`. No error of `open` may repeat the URL, because it may contain a password. A scheme stands for
/// those that add something behind a `+` or `-` too, as `redis` does for `redis+cluster`. The schemes of the databases and
/// of `memory:` cannot be taken over. A scheme that was registered before gets the new `open`: so a program gives its own
/// certificates, or its own prefix, to all stores that are opened by a URL.
///
/// ```
/// # use std::sync::Arc;
/// # use dblock_core::store::Store;
/// # fn my_store(_: &str, _: &str) -> Result<Arc<dyn Store>, dblock_core::LockError> { Err(dblock_core::LockError::invalid("")) }
/// let certificate = "ca.pem".to_owned();
/// dblock_core::store::schemes::register(&["mystore"], move |url| my_store(url, &certificate));
/// ```
pub fn register(
    schemes: &[&str],
    open: impl Fn(&str) -> Result<Arc<dyn Store>, LockError> + Send + Sync + 'static,
) {
    let open: Open = Arc::new(open);
    let mut openers = OPENERS.write().unwrap_or_else(PoisonError::into_inner);
    openers.extend(schemes.iter().map(|scheme| (protocol(scheme), Arc::clone(&open))));
}

/// The scheme in small letters, without what is added behind a `+` or `-`.
#[doc(hidden)]
pub fn protocol(scheme: &str) -> String {
    let (protocol, _) = scheme.split_once(['+', '-']).unwrap_or((scheme, ""));
    protocol.to_ascii_lowercase()
}

/// The function that opens URLs with this scheme, if it is registered.
#[doc(hidden)]
pub fn opener(scheme: &str) -> Option<Open> {
    let openers = OPENERS.read().unwrap_or_else(PoisonError::into_inner);
    openers.get(&protocol(scheme)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(_: &str) -> Result<Arc<dyn Store>, LockError> {
        Err(LockError::invalid("no"))
    }

    #[test]
    fn a_scheme_stands_for_those_that_add_something() {
        register(&["Here+x"], refuses);
        for scheme in ["here", "HERE", "here+cluster", "here-unix"] {
            assert!(opener(scheme).is_some(), "{scheme}");
        }
        for scheme in ["heres", "", "there+here"] {
            assert!(opener(scheme).is_none(), "{scheme}");
        }
    }
}
